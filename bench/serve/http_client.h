// A blocking HTTP/1.1 client on plain sockets, one connection a request: what a load generator
// needs. Answers come whole or as pieces. Stateless; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foresail {

struct HttpAddress {
  std::string host, port, prefix;  // of http://HOST:PORT/PREFIX, a last /v1 left out
};
// Throws Error{kUsage}.
HttpAddress parse_http_address(const std::string& url);

struct HttpReply {
  int status = 0;        // 0: none came
  std::string body;      // unless it went to `on_piece`
  std::string error;     // why there is no answer, or not all of it
  bool refused = false;  // nothing listens there
  bool ok() const { return status == 200 && error.empty(); }
};

struct HttpCall {
  std::string method = "GET", path, body;
  std::vector<std::pair<std::string, std::string>> fields;
  int timeout_s = 600;  // without a byte
  // Of an answer with status 200: its body as it comes.
  std::function<void(std::string_view)> on_piece;
};

HttpReply http_call(const HttpAddress& address, const HttpCall& call);

}  // namespace foresail
