// The library names fields in its messages ("options.page_size"); who types a command knows flags.
#pragma once

#include <string>
#include <string_view>

namespace foresail {

// With the flag in place of every field that has one: "--page-size 17: use 1, 16, 32 or 64".
std::string with_flags(std::string_view message);

}  // namespace foresail
