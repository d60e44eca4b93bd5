// Names, numbers and string literals inside template tags.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace foresail::jinja {

struct ScannedNumber {
  size_t bytes;
  Value value;
};
std::optional<ScannedNumber> scan_number(std::string_view text, bool allow_float);
size_t scan_name(std::string_view text);    // bytes, 0 when no name starts here
size_t scan_string(std::string_view text);  // bytes with both quotes, 0 when none
std::string unescape(std::string_view body);

}  // namespace foresail::jinja
