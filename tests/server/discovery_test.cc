// Rows 1 to 10 of the conformance checklist: what a client finds before it asks for anything.
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/utf8.h"
#include "server/live_server.h"

namespace foresail {
namespace {

using Discovery = LiveServer;

TEST(ServerStart, Row1And2HealthIs503UntilTheModelIsLoadedAndNeedsNoKey) {
  ServeOptions options = tales_options();
  options.api_keys = {"secret"};
  Server server(options);
  TestClient client(server.port());
  for (const char* path : {"/health", "/ready", "/ping", "/v1/health"}) {
    const TestResponse early = client.get(path);
    EXPECT_EQ(early.status, 503) << path;
    EXPECT_EQ(early.json()["error"]["code"], "model_loading");
    EXPECT_GE(std::stoi(early.fields.at("retry-after")), 1);
  }
  EXPECT_EQ(client.get("/livez").status, 200);
  const std::string key = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(client.request("GET", "/v1/models", "", key).status, 503);
  EXPECT_EQ(client.request("POST", "/v1/completions", R"({"prompt":"a"})", key).status, 503);
  server.load();
  for (const char* path : {"/health", "/ready", "/livez"})
    EXPECT_EQ(client.get(path).status, 200) << path;
  EXPECT_EQ(client.get("/v1/models").status, 401);
  EXPECT_EQ(client.request("GET", "/v1/models", "", key).status, 200);
  EXPECT_EQ(client.request("GET", "/health_generate", "", key).status, 200);
}

TEST_F(Discovery, Row3ModelsList) {
  const OrderedJson list = get("/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  ASSERT_GE(list["data"].size(), 1u);
  const OrderedJson& model = list["data"][0];
  EXPECT_EQ(model["id"], "tales");
  EXPECT_EQ(model["object"], "model");
  EXPECT_TRUE(model["created"].is_number_integer());
  EXPECT_TRUE(model["owned_by"].is_string());
  EXPECT_TRUE(model["root"].is_string());
  EXPECT_EQ(model["max_model_len"], 1024);
  EXPECT_EQ(get("/v1/models/tales").json(), model);
}

// Clients that took their server's command line over name a model by its path. Others are not told
// where it lies (what an admin is told: auth_test.cc).
TEST_F(Discovery, APathIsANameThatIsNotTold) {
  const std::string path = tales_options().engine.model_path;
  EXPECT_EQ(complete({{"model", path}}).status, 200);
  for (const std::string& told :
       {get("/v1/models").body, get("/v1/models/x").body, complete({{"model", "x"}}).body})
    EXPECT_EQ(told.find(path), std::string::npos) << told;
}

TEST_F(Discovery, Row4UnknownModelIs404) {
  const TestResponse response = get("/v1/models/x");
  expect_refused(response, "model", "`x` does not exist", 404);
  EXPECT_EQ(response.json()["error"]["code"], "model_not_found");
  EXPECT_EQ(response.json()["error"]["type"], "invalid_request_error");
}

TEST_F(Discovery, Row5VersionAndInfo) {
  EXPECT_TRUE(get("/version").json()["version"].is_string());
  EXPECT_EQ(get("/model_info").json()["is_generation"], true);
  EXPECT_EQ(get("/get_model_info").json(), get("/model_info").json());
  const OrderedJson loads = get("/v1/loads").json();
  ASSERT_EQ(loads["loads"].size(), 1u) << loads;
  // An answer may go out before the step that ended it is counted.
  EXPECT_TRUE(
      eventually([&] { return get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0; }));
  EXPECT_GT(loads["loads"][0]["max_total_num_tokens"], 1000);
}

TEST_F(Discovery, Row6ServerInfoHasTheAcceptLengthAfterASpeculativeRequest) {
  complete({{"max_tokens", 24}});
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const OrderedJson info = get(path).json();
    EXPECT_GE(info["internal_states"][0]["avg_spec_accept_length"], 1.0) << info;
    EXPECT_EQ(info["speculative_algorithm"], "MTP");
    EXPECT_TRUE(info.contains("model_path"));  // an admin from this machine
  }
}

TEST_F(Discovery, InfoTellsHowItDraftsAndWhatItCaches) {
  OrderedJson info = get("/server_info").json();
  EXPECT_EQ(info["speculative_adaptive"], false);
  EXPECT_EQ(info["kv_cache_dtype"], "bf16");
  EXPECT_THAT(get("/metrics").body,
              testing::HasSubstr("# HELP foresail:spec_accept_length 1 + accepted drafts / passes "
                                 "that had drafts, once per request.\n"));
  ServeOptions options = tales_options();
  options.engine.kv_cache_dtype = "fp8_e4m3";
  Server server(options);
  server.load();
  info = TestClient(server.port()).get("/server_info").json();
  EXPECT_EQ(info["speculative_adaptive"], true);
  EXPECT_EQ(info["kv_cache_dtype"], "fp8_e4m3");
}

// Neither the pass before the first request nor those of probes are anybody's.
TEST(ServerStart, ProbesAreInNoFigure) {
  ServeOptions options = tales_options();
  options.engine.speculative.adaptive = false;
  Server server(options);
  server.load();
  TestClient client(server.port());
  const auto figures = [&] {
    std::istringstream lines(client.get("/metrics").body);
    std::string kept;
    for (std::string line; std::getline(lines, line);) {
      if (line[0] == '#') continue;
      for (const char* name : {"prompt_tokens", "generation_tokens", "success", "seconds_",
                               "prefix_cache", "spec_", "request_", "kv_pages", "disconnects"})
        if (line.find(name) < line.find('{')) {
          kept += line + "\n";
          break;
        }
    }
    return kept;
  };
  const std::string before = figures();
  EXPECT_THAT(before, testing::HasSubstr("foresail:generation_tokens_total"));
  EXPECT_EQ(metric(server.port(), "foresail:generation_tokens_total"), 0);
  EXPECT_EQ(metric(server.port(), "foresail:prompt_tokens_total"), 0);
  EXPECT_GT(metric(server.port(), "foresail:engine_steps_total"), 0);  // of that first pass
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.get("/health_generate").status, 200);
  EXPECT_EQ(figures(), before);
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "Once"}, {"max_tokens", 3}}).status, 200);
  EXPECT_TRUE(
      eventually([&] { return metric(server.port(), "foresail:generation_tokens_total") == 3; }));
}

// Who has which page, in the order of the pages.
TEST_F(Discovery, PagesByTheirPlace) {
  const auto pages = [&](const std::string& state) {
    int64_t count = 0, total = 0;
    const OrderedJson map = get("/v1/kv_pages").json();
    for (const OrderedJson& run : map["runs"]) {
      total += run["pages"].get<int64_t>();
      if (run["state"] == state) count += run["pages"].get<int64_t>();
      EXPECT_EQ(run.contains("slot"), run["state"] == "used");
    }
    EXPECT_EQ(total, map["total"]);
    return count;
  };
  const std::string prompt(300, 'x');
  complete({{"prompt", prompt}});
  EXPECT_TRUE(eventually([&] { return pages("cached") > 0 && pages("used") == 0; }));
  TestClient client(port());
  client.send(request_text(
      "POST", "/v1/completions",
      OrderedJson{{"prompt", prompt}, {"max_tokens", 600}, {"ignore_eos", true}, {"stream", true}}
          .dump()));
  EXPECT_TRUE(eventually([&] { return pages("shared") > 0 && pages("used") > 0; }));
  client.close();
  EXPECT_TRUE(eventually([&] {
    return owned_pages(port()) == 0 &&
           metric(port(), "foresail:kv_pages", "state=\"in_flight\"") == 0;
  }));
  // Who asks once of an idle server is not told how it was when somebody last asked.
  EXPECT_EQ(pages("used"), 0);
  EXPECT_EQ(pages("shared"), 0);
}

TEST_F(Discovery, Row7HeadAndOptions) {
  TestClient client(port());
  const TestResponse head = client.request("HEAD", "/v1/models");
  EXPECT_EQ(head.status, 200);
  EXPECT_GT(std::stoi(head.fields.at("content-length")), 10);
  const TestResponse options = client.request("OPTIONS", "/v1/models");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.fields.at("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(client.get("/health").status, 200);  // in step after an answer without a body
}

// Bytes behind the head of an answer to HEAD would be taken for the next answer.
TEST_F(Discovery, HeadHasNoBodyEitherWhereItIsRefused) {
  for (const char* request :
       {"HEAD /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "HEAD /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n",
        "HEAD /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"}) {
    TestClient client(port());
    client.send(request);
    const std::string answer = client.read_until("no such text");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 501")) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
  }
  // Nor is it left out of the answer to what comes after a HEAD.
  TestClient client(port());
  EXPECT_EQ(client.request("HEAD", "/livez").status, 200);
  client.send("GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
  EXPECT_EQ(client.read().json()["error"]["code"], "bad_http");
}

// They stand in JSON, in labels of metrics and in one line on stdout.
TEST(ModelNames, AreOneLineOfUtf8) {
  const auto names = [](const std::string& name) {
    ServeOptions options = tales_options();
    options.names = {"good", name};
    Server server(options);
  };
  for (const std::string& wrong :
       {std::string(), std::string("a\nb"), std::string("a\tb"), std::string("\x1b[31m"),
        std::string("caf\xe9"), std::string("a\0b", 3), std::string(513, 'a')})
    EXPECT_THROW(names(wrong), Error) << wrong;
  for (const std::string& right :
       {std::string("Org/Name-1.5 \"x\""), std::string("caf\xc3\xa9"), std::string(512, 'a')})
    EXPECT_NO_THROW(names(right)) << right;

  // A folder may have any name: the model has it as it can be shown, and can be asked for by it.
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("foresail_" + std::to_string(getpid()) + "_a\nb\xff");
  fs::create_directory(folder);
  ServeOptions options = tales_options();
  for (const auto& file : fs::directory_iterator(options.engine.model_path))
    fs::create_symlink(file.path(), folder / file.path().filename());
  options.engine.model_path = folder.string();
  {
    Server server(options);
    server.load();
    const std::string name = TestClient(server.port()).get("/v1/models").json()["data"][0]["id"];
    EXPECT_TRUE(name.ends_with("_a\\x0ab\xEF\xBF\xBD")) << name;
    const OrderedJson body = {{"model", name}, {"prompt", "a"}, {"max_tokens", 1}};
    EXPECT_EQ(TestClient(server.port()).post("/v1/completions", body).status, 200);
    EXPECT_TRUE(is_valid_utf8(TestClient(server.port()).get("/metrics").body));
  }
  fs::remove_all(folder);
}

TEST_F(Discovery, Row8And9UnknownPathAndWrongMethod) {
  expect_refused(get("/v2/nothing"), "", "/v2/nothing", 404);
  expect_refused(get("/v1/embeddings"), "", "/v1/embeddings", 404);
  const TestResponse response = get("/v1/completions");
  expect_refused(response, "", "POST", 405);
  EXPECT_EQ(response.fields.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(post("/health", {{"a", 1}}).status, 405);
}

TEST_F(Discovery, EveryAnswerHasARequestId) {
  TestClient client(port());
  EXPECT_EQ(client.get("/health").fields.at("x-request-id").size(), 32u);
  const TestResponse named = client.request("GET", "/nothing", "", "X-Request-Id: abc-1\r\n");
  EXPECT_EQ(named.fields.at("x-request-id"), "abc-1");
  const TestResponse bad = client.request("GET", "/health", "", "X-Request-Id: a b\r\n");
  EXPECT_EQ(bad.fields.at("x-request-id").size(), 32u);
}

TEST_F(Discovery, TokenizeAndDetokenize) {
  const OrderedJson tokens = post("/tokenize", {{"prompt", "Once upon a time"}}).json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 1024);
  EXPECT_EQ(tokens["tokens"][0], 0);  // the begin token
  OrderedJson bare =
      post("/tokenize", {{"prompt", "Once upon a time"}, {"add_special_tokens", false}}).json();
  EXPECT_EQ(bare["count"].get<int>() + 1, tokens["count"].get<int>());
  EXPECT_EQ(post("/detokenize", {{"tokens", bare["tokens"]}}).json()["prompt"], "Once upon a time");
  EXPECT_EQ(post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["prompt"],
            "<｜begin▁of▁sentence｜>Once upon a time");
  expect_refused(post("/detokenize", {{"tokens", {1, 99999}}}), "tokens", "99999");
  expect_refused(post("/detokenize", {{"tokens", {-1}}}), "tokens", "-1");
  expect_refused(post("/tokenize", {{"text", "x"}}), "prompt", "is missing");
}

TEST(Page, IsOneClosedFileThatAnyoneMayRead) {
  ServeOptions options = tales_options();
  options.api_keys = {"secret"};
  Server server(options);  // no model yet
  const TestResponse page = TestClient(server.port()).get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.fields.at("content-type"), "text/html; charset=utf-8");
  EXPECT_TRUE(page.body.ends_with("</html>\n"));
  EXPECT_LE(page.body.size(), 150'000u);
  const std::string policy = page.fields.at("content-security-policy");
  EXPECT_THAT(policy, testing::StartsWith("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(policy, testing::Not(testing::HasSubstr("unsafe")));
  // Nothing from elsewhere, and no way from text to markup or to a program.
  for (const char* word :
       {"http:", "https:", "src=", "@import", "innerHTML", "outerHTML", "insertAdjacentHTML",
        "document.write", "eval(", "Function(", "style=", " onclick=", "DOMParser", "srcdoc"})
    EXPECT_EQ(page.body.find(word), std::string::npos) << word;
  ServeOptions bare = tales_options();
  bare.page = false;
  EXPECT_EQ(TestClient(Server(bare).port()).get("/").status, 404);
}

}  // namespace
}  // namespace foresail
