// Unicode normalization form C.
#pragma once

#include <string>
#include <string_view>

namespace foresail {

// Precondition: valid UTF-8. Linear in the text but for sorting runs of combining marks.
std::string canonically_composed(std::string_view text);

}  // namespace foresail
