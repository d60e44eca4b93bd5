// Who may call what. Keys are compared in time that depends on nothing secret.
// Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/error.h"
#include "server/foreign_pages.h"
#include "server/http/message.h"
#include "server/http/router.h"

namespace foresail {

class Auth {
 public:
  // No keys: everyone is a user but other sites' pages. No admin key: admins call from this
  // machine, not through a proxy. Throws Error{kUsage} for a key that is empty, too long or holds
  // spaces, and for allowed hosts that are none.
  Auth(std::vector<std::string> keys, std::string admin_key, ForeignPages pages = {});

  // Why not, or empty.
  std::optional<ApiError> refuse(const HttpRequest& request, Access access) const;
  bool is_admin(const HttpRequest& request) const { return !refuse(request, Access::kAdmin); }

 private:
  std::vector<std::string> keys_;
  std::string admin_key_;
  ForeignPages pages_;
};

// One key a line; empty lines and those that begin with # are skipped. Throws Error{kUsage}.
std::vector<std::string> read_key_file(const std::string& path);

}  // namespace foresail
