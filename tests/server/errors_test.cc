// Rows 83 to 96 of the conformance checklist: what is refused, and how it is said.
#include <fmt/core.h>

#include "server/live_server.h"

namespace foresail {
namespace {

using Errors = LiveServer;

TEST_F(Errors, Row83BadJsonSaysWhere) {
  TestClient client(port());
  const TestResponse response = client.request("POST", "/v1/completions", R"({"prompt": "a",,})");
  expect_refused(response, "", "column 16");
  expect_refused(client.request("POST", "/v1/completions", "[]"), "", "object");
  expect_refused(client.request("POST", "/v1/completions", "\xff"), "", "JSON");
  expect_refused(client.request("POST", "/v1/completions", R"({"prompt":"a"} x)"), "", "JSON");
  expect_refused(client.request("POST", "/v1/completions", ""), "", "JSON");
}

TEST_F(Errors, Row84WrongTypesAreNamed) {
  expect_refused(complete({{"max_tokens", "x"}}), "max_tokens", "integer, not a string");
  expect_refused(complete({{"max_tokens", 1.5}}), "max_tokens", "1.5");
  expect_refused(complete({{"temperature", "hot"}}), "temperature", "number, not a string");
  expect_refused(complete({{"stream", "yes"}}), "stream", "true or false");
  expect_refused(complete({{"stop", 5}}), "stop", "string or a list");
  expect_refused(complete({{"stop", {"a", 5}}}), "stop", "hold strings");
  expect_refused(complete({{"logit_bias", OrderedJson::array()}}), "logit_bias", "object");
  expect_refused(complete({{"prompt", 5}}), "prompt", "must be");
  expect_refused(complete({{"prompt", {1, "a"}}}), "prompt", "\"a\"");
  expect_refused(complete({{"model", 5}}), "model", "string");
  expect_refused(post("/v1/completions", {{"max_tokens", 3}}), "prompt", "is missing");
  EXPECT_EQ(complete({{"max_tokens", 3.0}}).status, 200);
}

TEST_F(Errors, Row85NumbersBeyondTheirRange) {
  TestClient client(port());
  for (const auto& [number, param] :
       std::vector<std::pair<std::string, std::string>>{{"NaN", ""},
                                                        {"Infinity", ""},
                                                        {"1e400", ""},
                                                        {"-1", "max_tokens"},
                                                        {"9223372036854775807", "max_tokens"},
                                                        {"9223372036854775808", "max_tokens"},
                                                        {"18446744073709551616", "max_tokens"},
                                                        {"1e30", "max_tokens"}})
    expect_refused(
        client.request("POST", "/v1/completions", R"({"prompt":"a","max_tokens":)" + number + "}"),
        param, "");
  EXPECT_EQ(client
                .request("POST", "/v1/completions",
                         R"({"prompt":"a","max_tokens":1,"temperature":-0,"seed":-0})")
                .status,
            200);
  expect_refused(client.request("POST", "/v1/completions", R"({"prompt":[-1]})"), "prompt", "-1");
  expect_refused(client.request("POST", "/v1/completions", R"({"prompt":[8192]})"), "prompt",
                 "8192");
  expect_refused(client.request("POST", "/v1/completions", R"({"prompt":[9223372036854775807]})"),
                 "prompt", "9223372036854775807");
  EXPECT_EQ(client.request("POST", "/v1/completions", R"({"prompt":[8191],"max_tokens":1})").status,
            200);
}

TEST_F(Errors, Row86DeepNesting) {
  TestClient client(port());
  const std::string deep(100'000, '[');
  const auto start = std::chrono::steady_clock::now();
  expect_refused(client.request("POST", "/v1/completions", R"({"x":)" + deep + "}"), "", "nested");
  expect_refused(client.request("POST", "/v1/chat/completions", R"({"tools":)" + deep + "}"), "",
                 "nested");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  const std::string shallow = std::string(32, '[') + std::string(32, ']');
  EXPECT_EQ(client
                .request("POST", "/v1/completions",
                         R"({"prompt":"a","max_tokens":1,"x":)" + shallow + "}")
                .status,
            200);
}

TEST_F(Errors, Row87DuplicateKeysAreRefused) {
  expect_refused(
      TestClient(port()).request("POST", "/v1/completions", R"({"prompt":"a","prompt":"b"})"), "",
      "repeats the key");
}

TEST_F(Errors, Row88And89BodiesAndHeadersOverTheLimit) {
  const double before = metric(port(), "foresail:requests_rejected_total", "headers_too_large");
  {
    TestClient client(port());
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: 99999999\r\n\r\n");
    const TestResponse response = client.read();
    expect_refused(response, "", "exceeds", 413);
    EXPECT_EQ(response.json()["error"]["code"], "request_too_large");
    EXPECT_TRUE(client.at_end());
  }
  {
    TestClient client(port());
    client.send(request_text("GET", "/health", "", "X: " + std::string(70'000, 'a') + "\r\n"));
    EXPECT_EQ(client.read().status, 431);
  }
  {
    TestClient client(port());
    client.send(request_text("GET", "/health", "", "X: " + std::string(9'000, 'a') + "\r\n"));
    EXPECT_EQ(client.read().status, 431);
  }
  {
    TestClient client(port());
    std::string fields;
    for (int i = 0; i < 120; ++i) fields += "X" + std::to_string(i) + ": a\r\n";
    client.send(request_text("GET", "/health", "", fields));
    EXPECT_EQ(client.read().status, 431);
  }
  EXPECT_EQ(metric(port(), "foresail:requests_rejected_total", "headers_too_large"), before + 3);
}

// Field by field within every other limit, and not at its end yet: nobody waits for more of it.
TEST_F(Errors, AHeadOverTheLimitIsRefusedBeforeItEnds) {
  const std::string line = "GET /health HTTP/1.1\r\n",
                    field = "X: " + std::string(795, 'a') + "\r\n";
  std::string fields;
  while (fields.size() < 79'000) fields += field;
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [head, status] : std::vector<std::pair<std::string, int>>{
           {line + fields, 431},
           {line + "X: " + std::string(79'000, 'a'), 431},
           {line + fields + "\r\n", 431},
           {"GET /" + std::string(79'000, 'a'), 414},
           {"GET /" + std::string(9'000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
           {std::string(79'000, 'A'), 414}}) {
    TestClient client(port());
    client.send(head);
    EXPECT_EQ(client.read().status, status) << head.substr(0, 60);
    EXPECT_TRUE(client.at_end());
  }
  // In pieces, as a network brings it, and one byte too long or exactly as long as may be.
  for (const size_t more : {0, 1}) {
    TestClient client(port());
    std::string head = line + "Host: x\r\n";
    while (head.size() + 2 * field.size() < (64 << 10)) head += field;
    head += "Y: " + std::string((64 << 10) + more - head.size() - 7, 'b') + "\r\n\r\n";
    ASSERT_EQ(head.size(), (64 << 10) + more);
    for (size_t at = 0; at < head.size(); at += 1'000) client.send(head.substr(at, 1'000));
    EXPECT_EQ(client.read().status, more == 0 ? 200 : 431);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// Everybody's bodies together have a limit, too, which nobody can hold against small ones.
TEST(BodyServer, WhatIsBeingSentAtOnceIsLimited) {
  ServeOptions options = tales_options();
  options.http.max_incoming_bytes = 1 << 20;
  Server server(options);
  server.load();
  const std::string small = R"({"prompt":"a","max_tokens":1})";
  const std::string large =
      R"({"prompt":"a","max_tokens":1,"x":")" + std::string(100'000, 'x') + "\"}";
  const auto status = [&](const std::string& body) {
    return TestClient(server.port()).request("POST", "/v1/completions", body).status;
  };
  const auto fill = [&](TestClient& client, bool chunked) {
    client.send(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\n{}\r\n{}",
                    chunked ? "Transfer-Encoding: chunked\r\n" : "Content-Length: 1048576\r\n",
                    chunked ? "F4000\r\n" : "") +
        std::string(999'424, ' '));
  };
  for (const bool chunked : {false, true}) {
    EXPECT_TRUE(eventually([&] { return status(large) == 200; }));
    TestClient holder(server.port());
    fill(holder, chunked);
    EXPECT_TRUE(eventually(
        [&] { return metric(server.port(), "foresail:http_incoming_bytes") == 999'424; }));
    EXPECT_EQ(status(large), 503);
    EXPECT_EQ(status(small), 200);
  }
  EXPECT_EQ(status(std::string(2'000'000, ' ')), 413);  // there will never be room for it
  // Who is refused gives back what it had, and so does who leaves.
  EXPECT_TRUE(eventually([&] { return status(large) == 200; }));
  EXPECT_EQ(metric(server.port(), "foresail:http_incoming_bytes"), 0);
  EXPECT_EQ(metric(server.port(), "foresail:requests_rejected_total", "incoming_bytes"), 2);
  // A request that runs holds nothing of it any more.
  TestClient running(server.port()), other(server.port());
  const std::string slow =
      R"({"prompt":"a","max_tokens":900,"ignore_eos":true,"stream":true,"x":")" +
      std::string(900'000, 'x') + "\"}";
  running.send(request_text("POST", "/v1/completions", slow));
  EXPECT_NE(running.read_until("data: ").find("data: "), std::string::npos);
  EXPECT_EQ(status(large), 200);
}

TEST(QueueServer, Row90AFullQueueIs503WithRetryAfter) {
  ServeOptions options = tales_options();
  options.engine.max_running_requests = 1;
  options.max_queued_requests = 1;
  Server server(options);
  server.load();
  const std::string body = R"({"prompt":"a","stream":true,"max_tokens":900,"ignore_eos":true})";
  TestClient running(server.port()), queued(server.port()), third(server.port());
  for (TestClient* client : {&running, &queued}) {
    client->send(request_text("POST", "/v1/completions", body));
    EXPECT_NE(client->read_until("200 OK").find("200 OK"), std::string::npos);
  }
  const TestResponse full = third.request("POST", "/v1/completions", body);
  EXPECT_EQ(full.status, 503);
  EXPECT_GE(std::stoi(full.fields.at("retry-after")), 1);
  EXPECT_EQ(full.json()["error"]["code"], "server_busy");
  // Row 98: one that leaves the queue makes room.
  queued.close();
  EXPECT_TRUE(eventually(
      [&] {
        const TestResponse response =
            TestClient(server.port()).post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}});
        return response.status == 200;
      },
      30));
}

TEST_F(Errors, Row92ContextOverflow) {
  const TestResponse response = complete({{"max_tokens", 5000}});
  expect_refused(response, "max_tokens", "This model's maximum context length is 1024 tokens");
  EXPECT_EQ(response.json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(response.json()["error"]["type"], "invalid_request_error");
  std::string words;
  for (int i = 0; i < 2000; ++i) words += "tale ";
  expect_refused(chat({{"messages", {{{"role", "user"}, {"content", words}}}}}), "messages",
                 "in the messages");
}

TEST_F(Errors, Row93And94UnknownFieldsAndModels) {
  EXPECT_EQ(complete({{"user", "u"}, {"metadata", {{"a", 1}}}, {"store", true}, {"zzz", 5}}).status,
            200);
  const TestResponse response = complete({{"model", "gpt-4"}});
  expect_refused(response, "model", "`gpt-4` does not exist", 404);
  EXPECT_EQ(response.json()["error"]["code"], "model_not_found");
}

// Whatever a client calls its request, answers and events stay the JSON that they are.
TEST_F(Errors, NamesOfRequestsAreText) {
  const std::string name = "a\"},\n\ndata: [DONE]\n\n\\\x01\x1b[2J\xC2\x9B é";
  for (const char* field : {"request_id", "rid"}) {
    EXPECT_EQ(complete({{field, name}}).json()["id"], "cmpl-" + name);
    EXPECT_EQ(chat({{field, name}}).json()["id"], "chatcmpl-" + name);
    const auto chunks = complete({{field, name}, {"stream", true}}).chunks();
    ASSERT_FALSE(chunks.empty());
    for (const OrderedJson& chunk : chunks) EXPECT_EQ(chunk["id"], "cmpl-" + name);
    const auto parts = chat({{field, name}, {"stream", true}}).chunks();
    ASSERT_FALSE(parts.empty());
    for (const OrderedJson& part : parts) EXPECT_EQ(part["id"], "chatcmpl-" + name);
  }
  EXPECT_EQ(post("/generate", {{"text", "a"}, {"rid", name}}).json()["meta_info"]["id"], name);
}

TEST_F(Errors, Row95ContentTypes) {
  TestClient client(port());
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  for (const char* type :
       {"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"})
    EXPECT_EQ(
        client
            .request("POST", "/v1/completions", body, std::string("Content-Type: ") + type + "\r\n")
            .status,
        200)
        << type;
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded"})
    expect_refused(client.request("POST", "/v1/completions", body,
                                  std::string("Content-Type: ") + type + "\r\n"),
                   "", "application/json", 415);
  expect_refused(client.request("POST", "/v1/completions", body, "Content-Encoding: gzip\r\n"), "",
                 "Content-Encoding", 415);
}

TEST_F(Errors, Row96ChunkedBodiesAndSmuggling) {
  {
    TestClient client(port());
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    const std::string body = R"({"prompt":"a","max_tokens":1})";
    client.send("a\r\n" + body.substr(0, 10) + "\r\n");
    client.send("13\r\n" + body.substr(10) + "\r\n0\r\n\r\n");
    EXPECT_EQ(client.read().status, 200);
    EXPECT_EQ(client.get("/health").status, 200);
  }
  for (const char* head :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Content-Length: -1\r\n\r\n",
        "Content-Length: +5\r\n\r\nhello", "Content-Length : 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n0\r\n\r\n", "Host: y\r\n\r\n"}) {
    TestClient client(port());
    client.send("POST /tokenize HTTP/1.1\r\nHost: x\r\n" + std::string(head));
    EXPECT_EQ(client.read().status, 400) << head;
    EXPECT_TRUE(client.at_end()) << head;
  }
  // A body whose end nobody knows would be read as the next request.
  for (const char* coding :
       {"identity", "gzip", "chunked, gzip", "gzip, chunked", "xchunked", "chunked;q=1"}) {
    TestClient client(port());
    client.send(
        fmt::format("POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {}\r\n\r\n"
                    "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
                    coding));
    EXPECT_EQ(client.read().status, 501) << coding;
    EXPECT_TRUE(client.at_end()) << coding;
  }
  TestClient old(port());
  old.send("POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_EQ(old.read().status, 400);
  TestClient nameless(port());
  nameless.send("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(nameless.read().status, 400);
}

// Row 96: beside the data, too, a chunked body has its limits.
TEST_F(Errors, ChunkLinesAndTrailers) {
  const std::string head =
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string body = R"({"prompt":"a"})";
  const std::string data = fmt::format("{:x};a=b\r\n{}\r\n0\r\n", body.size(), body);
  TestClient client(port());
  // Trailer fields are no part of the head: this key and this wish to close are nobody's.
  client.send(head + data + "Authorization: Bearer x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.get("/health").status, 200);
  std::string trailer;
  for (int i = 0; i < 20'000; ++i) trailer += "A: b\r\n";
  for (const std::string& flood :
       {head + data + trailer, head + "1;" + std::string(100'000, 'a')}) {
    TestClient hostile(port());
    hostile.send(flood);
    EXPECT_EQ(hostile.read().status, 431);
    EXPECT_TRUE(hostile.at_end());
  }
}

TEST_F(Errors, TargetsAndEmptyLines) {
  TestClient client(port());
  for (const char* target : {"/health", "http://x/health", "HTTPS://x:1/health?a=b", "/%68ealth",
                             "/v1/models/tales", "/v1/models/%74ales"}) {
    client.send(fmt::format("\r\nGET {} HTTP/1.1\r\nHost: x\r\n\r\n", target));
    EXPECT_EQ(client.read().status, 200) << target;
  }
  for (const char* target :
       {"http://x/nope", "httpx://x/health", "/health%00", "/health%3f", "/%"}) {
    client.send(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", target));
    EXPECT_EQ(client.read().status, 404) << target;
  }
  client.send("GET http://x?a HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.read().body.find("<html"), std::string::npos);
}

TEST_F(Errors, ExpectContinueAndHttp10) {
  TestClient client(port());
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_NE(client.read_until("100 Continue\r\n\r\n").find("100 Continue"), std::string::npos);
  client.send(body);
  EXPECT_EQ(client.read().status, 200);
  TestClient old(port());
  old.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 43"
      "\r\n\r\n{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":true}");
  const TestResponse response = old.read();
  EXPECT_EQ(response.fields.count("transfer-encoding"), 0u);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n")) << response.body;
}

}  // namespace
}  // namespace foresail
