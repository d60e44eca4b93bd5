// JSON written straight into a string: what every token passes through must cost next to nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace foresail {

// With its quotes. Invalid UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);
void append_json_ids(std::string& out, std::span<const int32_t> ids);

}  // namespace foresail
