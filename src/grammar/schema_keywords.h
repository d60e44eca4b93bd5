// The words of JSON Schema: which are kept, which say nothing about validity, and which are
// refused. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/json_types.h"

namespace foresail {

using Types = unsigned;
inline constexpr Types kNull = 1, kBoolean = 2, kInteger = 4, kNumber = 8, kString = 16,
                       kArray = 32, kObject = 64, kAllTypes = 127;

// 0: unknown. "number" includes the integers.
Types type_named(std::string_view name);
Types type_of(const OrderedJson& value);
// Where no "type" is given: the types that the other keywords speak of, or all.
Types implied_types(const OrderedJson& schema);

// Why the schema's keywords cannot be kept; empty when they can.
std::string unsupported_keyword(const OrderedJson& schema);
// A keyword that would have to hold together with `keyword`; empty when there is none. "type" may.
std::string keyword_beside(const OrderedJson& schema, std::string_view keyword);

// No value is valid against two of these, as far as types and constants of required properties
// show. References are followed within `root`.
bool exclude_each_other(const OrderedJson& schemas, const OrderedJson& root);

// The regular expression of a "format"; empty when it is not supported.
std::string_view pattern_of_format(std::string_view format);
std::string percent_decoded(const std::string& text);

}  // namespace foresail
