// Where a command writes its result.
#pragma once

#include <string>

namespace foresail {

// Throws Error{kUsage} where writing to `path` cannot succeed: asked before long work is done.
void require_writable(const std::string& path);

}  // namespace foresail
