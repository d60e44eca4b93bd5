// JSON from files and requests: nlohmann::json behind limits, so hostile input costs bounded work.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

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

// An object of these members, in their order. An object that the library makes of a list in braces
// leaks where memory runs out.
OrderedJson object_of(std::initializer_list<std::pair<std::string_view, OrderedJson>> members);

// As JSON text, on one line unless there is an indent. Invalid UTF-8 becomes U+FFFD. The library's
// own dump() and parse() cost every file that calls them another second of compiling.
std::string json_text(const Json& value, int indent = -1);
std::string json_text(const OrderedJson& value, int indent = -1);
// In one line of printable ASCII, for logs and terminals: those take other characters as orders.
std::string ascii_json_text(const OrderedJson& value);

}  // namespace foresail
