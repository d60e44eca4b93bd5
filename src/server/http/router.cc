#include "server/http/router.h"

namespace foresail {
namespace {

bool matches(const std::string& pattern, const std::string& path) {
  if (!pattern.ends_with("/*")) return pattern == path;
  const size_t stem = pattern.size() - 1;
  return path.size() > stem && path.compare(0, stem, pattern, 0, stem) == 0;
}

}  // namespace

void Router::add(Route route) {
  routes_.push_back(std::move(route));
}

Router::Match Router::find(const std::string& method, const std::string& path) const {
  Match match;
  const std::string wanted = method == "HEAD" ? "GET" : method;
  for (const Route& route : routes_) {
    if (!matches(route.path, path)) continue;
    if (route.method == wanted && match.route == nullptr) match.route = &route;
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  if (!match.allow.empty()) match.allow += ", OPTIONS";
  return match;
}

std::string Router::label(const std::string& path) const {
  for (const Route& route : routes_)
    if (matches(route.path, path)) return route.path;
  return "other";
}

}  // namespace foresail
