// Text from a file as it may appear in a message: one line, short, no control characters.
#pragma once

#include <string>
#include <string_view>

namespace foresail {

std::string printable_name(std::string_view name);

}  // namespace foresail
