#include "server/foreign_pages.h"

#include <fmt/core.h>

#include "base/error.h"
#include "checkpoint/printable_name.h"

namespace foresail {
namespace {

constexpr size_t kMaxShownBytes = 200;

// "https://Name:8000" -> "name:8000"; "null", which nameless pages send, stays.
std::string authority_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return lower(scheme == std::string_view::npos ? origin : origin.substr(scheme + 3));
}

// "name.:8000" -> "name", "[::1]:8000" -> "[::1]".
std::string host_of(const std::string& authority) {
  if (authority.starts_with("[")) return authority.substr(0, authority.find(']') + 1);
  std::string host = authority.substr(0, authority.find(':'));
  if (host.ends_with(".")) host.pop_back();
  return host;
}

// Addresses lead where they say, and these names are not to be had in the public DNS.
bool is_of_this_machine(const std::string& host) {
  if (host.find('.') == std::string::npos) return true;
  if (host.starts_with("[") || host.find_first_not_of("0123456789.") == std::string::npos)
    return true;
  for (const char* end : {".localhost", ".local", ".internal"})
    if (host.ends_with(end)) return true;
  return false;
}

}  // namespace

void ForeignPages::check() const {
  for (const std::string& allowed : allowed_hosts)
    if (host_of(allowed).empty() || allowed.find_first_of("/*@,;?#% \t\r\n") != std::string::npos)
      throw_error(ErrorCode::kUsage,
                  "--allowed-host {}: give one name as it stands in a URL, without scheme, path "
                  "and patterns (with an API key every name passes)",
                  printable_name(allowed));
}

bool ForeignPages::allows(const std::string& host) const {
  for (const std::string& allowed : allowed_hosts)
    if (host_of(lower(allowed)) == host) return true;
  return false;
}

std::optional<std::string> ForeignPages::refuse(const HttpRequest& request) const {
  const std::string named = lower(request.field("host"));
  if (only_names_of_this_machine && !is_of_this_machine(host_of(named)) && !allows(host_of(named)))
    return fmt::format(
        "This server is for its own machine, and was called {}: --allowed-host {} lets that pass, "
        "an API key too",
        named.substr(0, kMaxShownBytes), host_of(named).substr(0, kMaxShownBytes));

  // Browsers that know where a page comes from say so, whatever a proxy made of Host.
  std::optional<bool> foreign;
  std::string origin;
  for (const auto& [name, value] : request.fields) {
    if (name == "sec-fetch-site")
      foreign = foreign.value_or(false) || (value != "same-origin" && value != "none");
    if (name == "origin") origin = authority_of(value);
  }
  if (!foreign) foreign = !origin.empty() && origin != named;
  if (!*foreign || (!origin.empty() && allows(host_of(origin)))) return std::nullopt;
  const std::string shown = host_of(origin).substr(0, kMaxShownBytes);
  return fmt::format(
      "Pages of other sites are not served{}: --allowed-host {} lets them pass, an API key too",
      origin.empty() ? "" : fmt::format(", and this one is of {}", shown),
      origin.empty() ? "NAME" : shown);
}

}  // namespace foresail
