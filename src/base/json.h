// JSON from files and requests: nlohmann::json behind limits, so hostile input costs bounded work.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_types.h"
#include "base/result.h"

namespace foresail {

struct JsonLimits {
  uint64_t max_bytes = 64ull << 20;
  int max_depth = 64;
};

// Refuses: more bytes or depth than the limits, a BOM, invalid UTF-8, duplicate keys, trailing
// text.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});
Result<OrderedJson> parse_ordered_json(std::string_view text, const JsonLimits& limits = {});

// As JSON text, on one line unless there is an indent. Invalid UTF-8 becomes U+FFFD. The library's
// own dump() and parse() cost every file that calls them another second of compiling.
std::string json_text(const Json& value, int indent = -1);
std::string json_text(const OrderedJson& value, int indent = -1);

}  // namespace foresail
