// A plain HTTP client over one loopback socket, as crude as a test needs it to be.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace foresail {

struct TestResponse {
  int status = 0;                             // 0: the connection ended without an answer
  std::map<std::string, std::string> fields;  // names in lower case
  std::string body;                           // chunks joined
  bool ended = false;                         // the whole answer came

  OrderedJson json() const;  // of the body; discarded when it is none
  // The data of every event, in order.
  std::vector<std::string> events() const;
  // Those that are JSON.
  std::vector<OrderedJson> chunks() const;
};

class TestClient {
 public:
  explicit TestClient(int port, int timeout_s = 60);
  explicit TestClient(const std::string& unix_path);
  ~TestClient();
  TestClient(const TestClient&) = delete;

  void send(std::string_view bytes);
  TestResponse read(bool head_only = false);
  // Bytes as they come, until `text` has come or the connection ends.
  std::string read_until(std::string_view text);
  bool at_end();  // waits for the other side to close
  void shut_write();
  void close();
  int descriptor() const { return socket_; }

  TestResponse request(const std::string& method, const std::string& path,
                       const std::string& body = {}, const std::string& fields = {});
  TestResponse get(const std::string& path) { return request("GET", path); }
  TestResponse post(const std::string& path, const OrderedJson& body);

 private:
  bool fill();
  int socket_ = -1;
  std::string input_;
};

std::string request_text(const std::string& method, const std::string& path,
                         const std::string& body, const std::string& fields = {});

}  // namespace foresail
