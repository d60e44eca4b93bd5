// The known name closest to a mistyped one.
#pragma once

#include <string>
#include <vector>

namespace foresail {

// The only name that `typed` is the beginning of; or else the one with the fewest letters changed,
// empty when these are more than a third.
std::string nearest_name(const std::string& typed, const std::vector<std::string>& known);

}  // namespace foresail
