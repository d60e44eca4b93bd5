// Row 91 of the conformance checklist: keys, and who may change the server's state.
#include "server/auth.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "server/foreign_pages.h"
#include "server/live_server.h"

namespace foresail {
namespace {

HttpRequest request(const std::string& key, bool local = true, HttpFields more = {}) {
  HttpRequest request{.fields = std::move(more), .from_loopback = local};
  if (!key.empty()) request.fields.emplace_back("authorization", "Bearer " + key);
  return request;
}

// 0: let through.
int status(const Auth& auth, const HttpRequest& request, Access access) {
  const auto error = auth.refuse(request, access);
  return error ? error->status : 0;
}

TEST(Auth, WithoutKeysEveryoneIsAUserAndThisMachineIsTheAdmin) {
  const Auth auth({}, "");
  EXPECT_EQ(status(auth, request("", false), Access::kUser), 0);
  EXPECT_EQ(status(auth, request(""), Access::kAdmin), 0);
  EXPECT_EQ(status(auth, request("", false), Access::kAdmin), 403);
  EXPECT_EQ(status(auth, request("", true, {{"x-forwarded-for", "1.2.3.4"}}), Access::kAdmin), 403);
  EXPECT_EQ(status(auth, request("", true, {{"origin", "http://evil"}}), Access::kAdmin), 403);
  // The client's own empty field comes first, its proxy's behind it.
  for (const char* name : {"x-forwarded-for", "forwarded", "x-real-ip", "via", "origin"})
    EXPECT_EQ(status(auth, request("", true, {{name, ""}, {name, "1.2.3.4"}}), Access::kAdmin), 403)
        << name;
  EXPECT_EQ(status(auth, request("", true, {{"x-forwarded-host", "x"}}), Access::kAdmin), 403);
}

TEST(Auth, Row91WithKeysEverythingButHealthNeedsOne) {
  const Auth auth({"alpha", "beta"}, "");
  EXPECT_EQ(status(auth, request(""), Access::kOpen), 0);
  for (const char* wrong : {"", "alph", "alphaa", "gamma", "Alpha"}) {
    EXPECT_EQ(status(auth, request(wrong), Access::kUser), 401) << wrong;
    EXPECT_EQ(status(auth, request(wrong), Access::kAdmin), 401) << wrong;
  }
  EXPECT_EQ(status(auth, request("alpha"), Access::kUser), 0);
  EXPECT_EQ(status(auth, request("beta"), Access::kAdmin), 0);
  EXPECT_EQ(status(auth, request("beta", false), Access::kAdmin), 403);
  HttpRequest scheme{.fields = {{"authorization", "bearer  alpha"}}};
  EXPECT_EQ(status(auth, scheme, Access::kUser), 0);
  scheme.fields = {{"authorization", "Basic alpha"}};
  EXPECT_EQ(status(auth, scheme, Access::kUser), 401);
}

TEST(Auth, AnAdminKeyIsNeededForWhatChangesState) {
  const Auth auth({"user"}, "root");
  EXPECT_EQ(status(auth, request(""), Access::kAdmin), 401);
  EXPECT_EQ(status(auth, request("user"), Access::kAdmin), 403);
  EXPECT_EQ(status(auth, request("root", false), Access::kAdmin), 0);
  EXPECT_EQ(status(auth, request("root", false), Access::kUser), 0);
  const Auth open({}, "root");
  EXPECT_EQ(status(open, request(""), Access::kUser), 0);
  EXPECT_EQ(status(open, request(""), Access::kAdmin), 401);
}

TEST(Auth, KeysThatCannotBeSentAreRefused) {
  EXPECT_THROW(Auth({""}, ""), Error);
  EXPECT_THROW(Auth({"a b"}, ""), Error);
  EXPECT_THROW(Auth({std::string(513, 'a')}, ""), Error);
  EXPECT_THROW(Auth({}, "a\n"), Error);
  EXPECT_THROW(Auth({"a\x01"}, ""), Error);
  EXPECT_THROW(Auth({"a\x7F"}, ""), Error);
  EXPECT_NO_THROW(Auth({"caf\xc3\xa9"}, ""));
  const std::string path = testing::TempDir() + "/foresail_keys";
  write_file(path, "# comment\nalpha\r\n\nbeta\n");
  EXPECT_EQ(read_key_file(path), (std::vector<std::string>{"alpha", "beta"}));
  write_file(path,
             "\xEF\xBB\xBF"
             "alpha\n");
  EXPECT_THROW(read_key_file(path), Error);
  write_file(path, "# none\n");
  EXPECT_THROW(read_key_file(path), Error);
}

// What browsers send, page by page; "" is what everything else sends.
TEST(ForeignPages, AreToldByWhatBrowsersSay) {
  const auto foreign = [](HttpFields fields, const ForeignPages& pages = {}) {
    return pages.refuse({.fields = std::move(fields)}).has_value();
  };
  const std::pair<std::string, std::string> host = {"host", "10.0.0.5:8000"};
  EXPECT_FALSE(foreign({host}));
  EXPECT_FALSE(foreign({}));
  EXPECT_FALSE(foreign({host, {"origin", "http://10.0.0.5:8000"}}));
  EXPECT_FALSE(foreign({{"host", "Name:8000"}, {"origin", "http://name:8000"}}));
  for (const char* origin : {"http://evil.com", "http://10.0.0.5", "http://10.0.0.5:8001", "null",
                             "http://10.0.0.5:8000.evil.com", "http://evil.com/10.0.0.5:8000"})
    EXPECT_TRUE(foreign({host, {"origin", origin}})) << origin;
  for (const char* site : {"cross-site", "same-site", "", "x"}) {
    EXPECT_TRUE(foreign({host, {"sec-fetch-site", site}})) << site;
    EXPECT_TRUE(foreign({host, {"sec-fetch-site", "none"}, {"sec-fetch-site", site}})) << site;
  }
  // Behind a proxy that changes Host.
  EXPECT_FALSE(foreign({{"host", "localhost"},
                        {"origin", "https://llm.example.com"},
                        {"sec-fetch-site", "same-origin"}}));
  EXPECT_FALSE(foreign({host, {"sec-fetch-site", "none"}}));
  const ForeignPages allowing{.allowed_hosts = {"Good.com", "null"}};
  EXPECT_FALSE(foreign({host, {"origin", "https://good.com:444"}}, allowing));
  EXPECT_FALSE(
      foreign({host, {"origin", "https://good.com"}, {"sec-fetch-site", "cross-site"}}, allowing));
  EXPECT_FALSE(foreign({host, {"origin", "null"}}, allowing));
  EXPECT_TRUE(foreign({host, {"origin", "https://good.com.evil.com"}}, allowing));
}

// What would never match is a slip: whoever wrote it would look for the fault elsewhere.
TEST(ForeignPages, AllowedHostsAreNames) {
  for (const char* wrong :
       {"https://good.com", "good.com/v1", "*", "*.good.com", "good.com evil.com",
        "good.com,evil.com", "good.com?x", "good.com#x", "me@good.com", ":8000", ""})
    EXPECT_THROW(Auth({}, "", {.allowed_hosts = {"good.com", wrong}}), Error) << wrong;
  for (const char* right : {"good.com", "good.com:8000", "null", "[::1]", "localhost"})
    EXPECT_NO_THROW(Auth({}, "", {.allowed_hosts = {right}})) << right;
}

TEST(ForeignPages, OnlyNamesOfThisMachineLeadToLoopback) {
  const ForeignPages pages{.only_names_of_this_machine = true,
                           .allowed_hosts = {"llm.example.com"}};
  const auto foreign = [&](const std::string& host) {
    return pages.refuse({.fields = {{"host", host}, {"sec-fetch-site", "same-origin"}}})
        .has_value();
  };
  for (const char* host :
       {"", "localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "localhost.", "box:8000",
        "app.localhost:8000", "box.local", "host.docker.internal:8000", "LLM.example.com:8000"})
    EXPECT_FALSE(foreign(host)) << host;
  for (const char* host : {"evil.com", "evil.com:8000", "evil.com.:8000", "127.0.0.1.evil.com",
                           "localhost.evil.com", "1.2.3.4.x.org:8000", "x.localhost.org"})
    EXPECT_TRUE(foreign(host)) << host;
}

// What `fetch(url, {method: "POST", mode: "no-cors", body: new Blob([json])})` sends.
TEST(PageServer, PagesOfOtherSitesSpendNothing) {
  Server server(tales_options());
  server.load();
  TestClient client(server.port());
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  const auto status = [&](const std::string& host, const std::string& fields,
                          const std::string& path = "/v1/completions") {
    client.send(fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\n{}Content-Length: {}\r\n\r\n{}", path,
                            host, fields, body.size(), body));
    const TestResponse response = client.read();
    EXPECT_EQ(response.body.find("\"code\":\"foreign_page\"") != std::string::npos,
              response.status == 403);
    EXPECT_EQ(response.fields.count("access-control-allow-origin"), 0u);
    return response.status;
  };
  const std::string own = fmt::format("127.0.0.1:{}", server.port());
  EXPECT_EQ(status(own, ""), 200);
  EXPECT_EQ(status(own, fmt::format("Origin: http://{}\r\n", own)), 200);
  EXPECT_EQ(status(own, "Origin: http://evil.com\r\nSec-Fetch-Site: cross-site\r\n"), 403);
  EXPECT_EQ(status(own, "Origin: \xff\xfe\"\r\n"), 403);
  EXPECT_EQ(status("evil.com", "Origin: http://evil.com\r\n"), 403);
  EXPECT_EQ(status("evil.com", "", "/abort_request"), 403);
  EXPECT_EQ(client.request("GET", "/health_generate", "", "Sec-Fetch-Site: cross-site\r\n").status,
            403);
  // The page itself and what says whether the server lives are open to all.
  EXPECT_EQ(client.request("GET", "/", "", "Sec-Fetch-Site: cross-site\r\n").status, 200);
  EXPECT_EQ(client.request("GET", "/health", "", "Sec-Fetch-Site: cross-site\r\n").status, 200);
  EXPECT_EQ(metric(server.port(), "foresail:requests_rejected_total", "foreign_page"), 5);
}

TEST(PageServer, WhoShowsAKeyMayComeFromAnywhere) {
  ServeOptions options = tales_options();
  options.api_keys = {"alpha"};
  Server server(options);
  server.load();
  TestClient client(server.port());
  const std::string page = "Origin: http://ui.example.com\r\nSec-Fetch-Site: cross-site\r\n";
  EXPECT_EQ(client.request("GET", "/v1/models", "", page).status, 401);
  EXPECT_EQ(
      client.request("GET", "/v1/models", "", page + "Authorization: Bearer alpha\r\n").status,
      200);
}

// One that listens on :: takes IPv4 too, under names of its own.
TEST(KeyServer, ThisMachineByEveryAddress) {
  ServeOptions options = tales_options();
  options.address.host = "::";
  Server server(options);
  server.load();
  EXPECT_EQ(TestClient(server.port()).request("POST", "/flush_cache").status, 200);
}

TEST(KeyServer, Row91OverTheWire) {
  ServeOptions options = tales_options();
  options.api_keys = {"alpha"};
  options.admin_api_key = "root";
  Server server(options);
  server.load();
  TestClient client(server.port());
  const TestResponse none = client.post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.json()["error"]["code"], "invalid_api_key");
  EXPECT_EQ(none.json()["error"]["type"], "authentication_error");
  EXPECT_EQ(none.fields.at("www-authenticate"), "Bearer");
  const std::string user = "Authorization: Bearer alpha\r\n";
  EXPECT_EQ(client.request("GET", "/metrics", "", user).status, 200);
  EXPECT_EQ(client.request("POST", "/flush_cache", "", user).status, 403);
  EXPECT_EQ(client.request("POST", "/flush_cache", "", "Authorization: Bearer root\r\n").status,
            200);
  // Only an admin is told where the model lies.
  EXPECT_FALSE(client.request("GET", "/server_info", "", user).json().contains("model_path"));
  EXPECT_EQ(client.request("GET", "/model_info", "", user).json()["model_path"], "tales");
  for (const char* path : {"/server_info", "/model_info"}) {
    const TestResponse told = client.request("GET", path, "", "Authorization: Bearer root\r\n");
    EXPECT_EQ(told.json()["model_path"], options.engine.model_path) << path;
  }
  for (const char* path : {"/health", "/ready", "/livez"}) EXPECT_EQ(client.get(path).status, 200);
  for (const char* path : {"/version", "/metrics", "/v1/models", "/server_info", "/v1/loads"})
    EXPECT_EQ(client.get(path).status, 401) << path;
}

}  // namespace
}  // namespace foresail
