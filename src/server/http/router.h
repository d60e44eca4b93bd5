// Which handler a request belongs to, who may call it, and when it works.
// Filled once, then read from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/http/exchange.h"

namespace foresail {

enum class Access { kOpen, kUser, kAdmin };
enum class When { kAlways, kLoaded, kServing };  // kServing: and not shutting down

struct Route {
  std::string method;
  std::string path;  // "/v1/models/*": anything behind it
  Access access;
  When when;
  std::function<void(const std::shared_ptr<Exchange>&)> handle;
};

class Router {
 public:
  void add(Route route);

  struct Match {
    const Route* route = nullptr;
    std::string allow;  // the methods of the path; empty: there is no such path
  };
  // HEAD finds what GET does.
  Match find(const std::string& method, const std::string& path) const;
  // The path as it was added: one of few, whatever a client sends.
  std::string label(const std::string& path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace foresail
