// Whether a request is the doing of another site's page in a browser of this machine or network:
// browsers send such requests without asking, and only keep the answer from the page.
// Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/http/message.h"

namespace foresail {

struct ForeignPages {
  // A server that only this machine reaches is only called by names that no outsider can give it. A
  // page of another name that leads to 127.0.0.1 (DNS rebinding) is its own origin, and would
  // even be shown the answers.
  bool only_names_of_this_machine = false;
  // Further names, in Host and in Origin: of a proxy, a tunnel, a page elsewhere.
  std::vector<std::string> allowed_hosts;

  // Throws Error{kUsage} for an allowed host that is no name of one.
  void check() const;
  // Why it is not served, or empty.
  std::optional<std::string> refuse(const HttpRequest& request) const;

 private:
  bool allows(const std::string& host) const;
};

}  // namespace foresail
