// JSON from files and requests: nlohmann::json behind limits, so hostile input costs bounded work.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace foresail {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps key order, for templates and tools

struct JsonLimits {
  uint64_t max_bytes = 64ull << 20;
  int max_depth = 64;
};

// Refuses: more bytes or depth than the limits, a BOM, invalid UTF-8, duplicate keys, trailing
// text.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});
Result<OrderedJson> parse_ordered_json(std::string_view text, const JsonLimits& limits = {});

}  // namespace foresail
