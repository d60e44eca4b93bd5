// The known name closest to a mistyped one.
#pragma once

#include <string>
#include <vector>

namespace foresail {

// Empty when nothing is near (more than a third of the letters differ).
std::string nearest_name(const std::string& typed, const std::vector<std::string>& known);

}  // namespace foresail
