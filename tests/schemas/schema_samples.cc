#include "schemas/schema_samples.h"

#include <fmt/core.h>

#include "base/json.h"

namespace foresail {

OrderedJson SchemaSamples::draw() {
  OrderedJson schema = of_object(0);
  if (!bounded_ && pick(3) == 0) {
    schema["$defs"] = {{"node", of_object(1)}};
    schema["$defs"]["node"]["properties"]["child"] = {{"$ref", "#/$defs/node"}};
    schema["properties"]["tree"] = {{"$ref", "#/$defs/node"}};
  }
  return schema;
}

OrderedJson SchemaSamples::of_object(int depth) {
  OrderedJson schema = {{"type", "object"},
                        {"properties", OrderedJson::object()},
                        {"required", OrderedJson::array()}};
  const int count = 1 + pick(3);
  for (int i = 0; i < count; ++i) {
    const std::string name = fmt::format("{}{}", pick(2) == 0 ? "na" : "größe ", i);
    schema["properties"][name] = any(depth + 1);
    if (pick(3) > 0) schema["required"].push_back(name);
  }
  if (pick(2) == 0) schema["additionalProperties"] = false;
  if (!bounded_ && pick(5) == 0)
    schema["additionalProperties"] = {{"type", "integer"}, {"maximum", 9}};
  return schema;
}

OrderedJson SchemaSamples::of_array(int depth) {
  OrderedJson schema = {{"type", "array"}, {"items", any(depth + 1)}};
  const int least = pick(3);
  if (pick(2) == 0) schema["minItems"] = least;
  schema["maxItems"] = least + pick(3);
  if (pick(4) == 0)
    schema = {{"type", "array"},
              {"prefixItems", {{{"type", "boolean"}}, {{"enum", {1, "a", nullptr}}}}},
              {"items", {{"type", "null"}}},
              {"minItems", pick(3)},
              {"maxItems", 2 + pick(3)}};
  return schema;
}

OrderedJson SchemaSamples::of_number() {
  OrderedJson schema = {{"type", pick(2) == 0 ? "integer" : "number"}};
  const int low = pick(2000) - 1000;
  const int high = low + 1 + pick(500);
  if (pick(4) > 0) schema[pick(3) > 0 ? "minimum" : "exclusiveMinimum"] = low;
  if (pick(4) > 0) schema["maximum"] = high;
  if (schema["type"] == "number" && pick(2) == 0) schema["exclusiveMaximum"] = high - 0.25;
  return schema;
}

OrderedJson SchemaSamples::of_string() {
  const char* const patterns[] = {"^[a-z]{2,5}$", "^(ab|cd)+$", "[0-9]{3}", "^\\d{4}-\\d\\d$",
                                  "x$"};
  OrderedJson schema = {{"type", "string"}};
  if (pick(3) == 0) {
    schema["pattern"] = patterns[bounded_ ? 3 * pick(2) : pick(5)];
    return schema;
  }
  const int least = pick(5);
  if (pick(2) == 0) schema["minLength"] = least;
  schema["maxLength"] = least + 1 + pick(12);
  return schema;
}

OrderedJson SchemaSamples::any(int depth) {
  switch (pick(depth > 2 ? 5 : 9)) {
    case 0:
      return of_string();
    case 1:
      return of_number();
    case 2:
      return {{"type", {"boolean", "null"}}};
    case 3:
      return {{"enum", {"red", "green", "gr\"ün\n", 7, false, nullptr}}};
    case 4:
      return {{"const", {{"kind", "x"}, {"n", {1, 2}}}}};
    case 5:
      return {{"anyOf", {of_string(), of_number(), any(depth + 1)}}};
    case 6:
      return {{"oneOf", {{{"type", "integer"}, {"minimum", 0}}, of_string(), {{"type", "null"}}}}};
    case 7:
      return of_array(depth);
    default:
      return of_object(depth);
  }
}

}  // namespace foresail
