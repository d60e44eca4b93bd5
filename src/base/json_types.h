// The JSON types by name alone, for headers: base/json.h, which has all of them, costs every file
// that sees it a second of compiling.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace foresail {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps key order, for templates and tools

}  // namespace foresail
