// A server that listens on a file.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "server/live_server.h"

namespace foresail {
namespace {

class UnixSocket : public testing::Test {
 protected:
  UnixSocket() { options_.address.unix_path = path_; }
  ~UnixSocket() override { std::filesystem::remove(path_); }

  std::string refusal() {
    try {
      Server server(options_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return error.what();
    }
    return "";
  }

  std::string path_ =
      std::filesystem::temp_directory_path() / ("foresail_" + std::to_string(getpid()) + ".sock");
  ServeOptions options_ = tales_options();
};

TEST_F(UnixSocket, ServesAndLeavesNothingBehind) {
  {
    Server server(options_);
    server.load();
    EXPECT_EQ(server.url(), "unix:" + path_);
    TestClient client(path_);
    const TestResponse answer =
        client.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}, {"stream", true}});
    EXPECT_EQ(answer.events().back(), "[DONE]");
    // Who may open the file is on this machine, unless a proxy says otherwise.
    EXPECT_EQ(client.post("/abort_request", {{"abort_all", true}}).status, 200);
    EXPECT_EQ(client
                  .request("POST", "/abort_request", R"({"abort_all":true})",
                           "X-Forwarded-For: 10.0.0.1\r\n")
                  .status,
              403);
    server.drain(std::chrono::seconds(10));
    EXPECT_TRUE(client.at_end());
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixSocket, AnotherServersFileStays) {
  auto first = std::make_unique<Server>(options_);
  std::filesystem::remove(path_);
  Server second(options_);
  first.reset();
  EXPECT_EQ(TestClient(path_).get("/livez").status, 200);
}

TEST_F(UnixSocket, AFileInTheWay) {
  {
    Server first(options_);
    EXPECT_THAT(refusal(), testing::HasSubstr("another server does"));
    EXPECT_EQ(TestClient(path_).get("/livez").status, 200);
    // A copy of the file's name outlives the server, as after a kill.
    std::filesystem::create_hard_link(path_, path_ + ".kept");
  }
  std::filesystem::rename(path_ + ".kept", path_);
  EXPECT_EQ(refusal(), "");
  EXPECT_FALSE(std::filesystem::exists(path_));
  std::ofstream(path_) << "somebody's text";
  EXPECT_THAT(refusal(), testing::HasSubstr("cannot listen on " + path_));
  EXPECT_EQ(std::filesystem::file_size(path_), 15u);
  options_.address.unix_path = "/" + std::string(200, 'x');
  EXPECT_THAT(refusal(), testing::HasSubstr("cannot listen on /xxx"));
  options_.address.unix_path = "/no/such/folder/socket";
  EXPECT_THAT(refusal(), testing::HasSubstr("No such file"));
}

}  // namespace
}  // namespace foresail
