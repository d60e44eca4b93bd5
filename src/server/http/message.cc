#include "server/http/message.h"

#include <fmt/core.h>

#include <random>

namespace foresail {

std::string_view HttpRequest::field(std::string_view name) const {
  for (const auto& [key, value] : fields)
    if (key == name) return value;
  return {};
}

std::string_view http_reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Request Aborted";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string decode_percent(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const int letter = (c | 0x20) - 'a';
    return letter >= 0 && letter < 6 ? letter + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

std::string path_of(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"})
    if (lower(target.substr(0, scheme.size())) == scheme) {
      const size_t end = target.find_first_of("/?", scheme.size());
      target = end == std::string_view::npos ? std::string_view() : target.substr(end);
      const std::string path = decode_percent(target.substr(0, target.find('?')));
      return path.empty() ? "/" : path;
    }
  return decode_percent(target.substr(0, target.find('?')));
}

bool is_usable_id(std::string_view id) {
  if (id.empty() || id.size() > 128) return false;
  for (const char c : id)
    if (c <= ' ' || c > '~') return false;
  return true;
}

std::string random_hex_id() {
  thread_local std::mt19937_64 engine = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return fmt::format("{:016x}{:016x}", engine(), engine());
}

}  // namespace foresail
