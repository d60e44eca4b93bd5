// An HTTP request that has come in whole, and an answer. Plain values; no library types.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foresail {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;   // of the target, before the question mark, %-escapes decoded
  HttpFields fields;  // names in lower case
  std::string body;
  std::string id;  // the client's X-Request-Id, or one made here
  bool from_loopback = false;

  // The first of that name (lower case), or empty.
  std::string_view field(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpFields fields;  // further ones
  // Of a refusal, for the log: what the body calls the same. Fixed names, never a client's text.
  std::string param = {}, code = {};
};

std::string_view http_reason(int status);
// A to Z as a to z.
std::string lower(std::string_view text);
// Each %XX as its byte; what is no escape stays.
std::string decode_percent(std::string_view text);
// The path of a request's target; proxies may send a whole URL.
std::string path_of(std::string_view target);
// Whether a request's own id may stand in a field of its answer.
bool is_usable_id(std::string_view id);
// The lower-case letters and digits of 128 random bits.
std::string random_hex_id();

}  // namespace foresail
