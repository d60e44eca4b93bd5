// Row 91 of the conformance checklist: keys, and who may change the server's state.
#include "server/auth.h"
#include "base/error.h"
#include "base/file.h"
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
  const std::string path = testing::TempDir() + "/foresail_keys";
  write_file(path, "# comment\nalpha\r\n\nbeta\n");
  EXPECT_EQ(read_key_file(path), (std::vector<std::string>{"alpha", "beta"}));
  write_file(path, "# none\n");
  EXPECT_THROW(read_key_file(path), Error);
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
  for (const char* path : {"/health", "/ready", "/livez"}) EXPECT_EQ(client.get(path).status, 200);
  for (const char* path : {"/version", "/metrics", "/v1/models", "/server_info", "/v1/loads"})
    EXPECT_EQ(client.get(path).status, 401) << path;
}

}  // namespace
}  // namespace foresail
