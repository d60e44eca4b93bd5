// Where a command writes its result.
#pragma once

#include <string>

namespace foresail {

// Throws Error{kUsage} where writing to `path` cannot succeed, or would take the file `input` with
// it ("": there is none): asked before long work is done.
void require_writable(const std::string& path, const std::string& input);

}  // namespace foresail
