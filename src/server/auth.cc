#include "server/auth.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace foresail {
namespace {

constexpr size_t kMaxKeyBytes = 512;

// Looks at every byte of the longest key there may be, whatever was presented.
bool equal_in_constant_time(std::string_view presented, std::string_view key) {
  unsigned difference = presented.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < kMaxKeyBytes; ++i) {
    const auto at = [i](std::string_view text) {
      return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    difference |= at(presented) ^ at(key);
  }
  return difference == 0;
}

std::string_view presented_key(const HttpRequest& request) {
  const std::string_view field = request.field("authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (field.size() <= kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i)
    if ((field[i] | 0x20) != (kScheme[i] | 0x20)) return {};
  const std::string_view key = field.substr(kScheme.size());
  const size_t begin = key.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view() : key.substr(begin);
}

void check_key(const std::string& key) {
  // A field of a request holds no others.
  const bool usable =
      !key.empty() && key.size() <= kMaxKeyBytes &&
      std::none_of(key.begin(), key.end(), [](unsigned char c) { return c <= ' ' || c == 0x7F; });
  if (!usable)
    throw_error(ErrorCode::kUsage,
                "an API key has 1 to {} characters, no spaces and no control characters",
                kMaxKeyBytes);
}

// A proxy on this machine would make the whole world local.
// Empty fields count: one that a client sent may stand before the one that its proxy added.
bool is_local(const HttpRequest& request) {
  for (const auto& [name, value] : request.fields)
    if (name.starts_with("x-forwarded-") || name == "forwarded" || name == "x-real-ip" ||
        name == "via" || name == "origin")
      return false;
  return request.from_loopback;
}

}  // namespace

Auth::Auth(std::vector<std::string> keys, std::string admin_key, ForeignPages pages)
    : keys_(std::move(keys)), admin_key_(std::move(admin_key)), pages_(std::move(pages)) {
  for (const std::string& key : keys_) check_key(key);
  if (!admin_key_.empty()) check_key(admin_key_);
  pages_.check();
}

std::optional<ApiError> Auth::refuse(const HttpRequest& request, Access access) const {
  if (access == Access::kOpen) return std::nullopt;
  const std::string_view presented = presented_key(request);
  // Every key is compared, so that time does not tell which one was near.
  bool user = keys_.empty();
  for (const std::string& key : keys_) user |= equal_in_constant_time(presented, key);
  const bool admin = !admin_key_.empty() && equal_in_constant_time(presented, admin_key_);
  // A page can't show a key that its site wasn't given: who shows one is no victim of a page.
  if (keys_.empty() && !admin)
    if (const auto reason = pages_.refuse(request)) return api_error(403, "foreign_page", *reason);
  if (admin || (access == Access::kUser && user)) return std::nullopt;
  if (access == Access::kAdmin && user && admin_key_.empty() && is_local(request))
    return std::nullopt;
  if (!user || (presented.empty() && !admin_key_.empty()))
    return api_error(401, "invalid_api_key",
                     presented.empty() ? "An API key is needed: send Authorization: Bearer KEY"
                                       : "Invalid API key");
  return api_error(403, "",
                   admin_key_.empty()
                       ? "This path works from this machine only, and not through a proxy, unless "
                         "the server has an admin key"
                       : "This path needs the admin key");
}

std::vector<std::string> read_key_file(const std::string& path) {
  const std::string text = read_input(path, 1 << 20);
  if (text.starts_with("\xEF\xBB\xBF"))  // it would be part of the first key
    throw_error(ErrorCode::kUsage, "{}: starts with a byte order mark: remove it",
                input_name(path));
  std::istringstream lines(text);
  std::vector<std::string> keys;
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line[0] != '#') keys.push_back(line);
  }
  if (keys.empty()) throw_error(ErrorCode::kUsage, "{}: holds no key", input_name(path));
  return keys;
}

}  // namespace foresail
