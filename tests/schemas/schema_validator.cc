#include "schemas/schema_validator.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "base/json.h"

namespace foresail {

bool SchemaValidator::holds(const OrderedJson& value, const OrderedJson& schema) const {
  if (schema.is_boolean()) return schema.get<bool>();
  for (const auto& [keyword, asked] : schema.items())
    if (!keeps(value, keyword, asked, schema)) return false;
  return true;
}

bool SchemaValidator::keeps(const OrderedJson& value, const std::string& keyword,
                            const OrderedJson& asked, const OrderedJson& schema) const {
  if (keyword == "type") return has_type(value, asked);
  if (keyword == "const") return value == asked;
  if (keyword == "enum") return std::find(asked.begin(), asked.end(), value) != asked.end();
  if (keyword == "$ref")
    return holds(value, root_[OrderedJson::json_pointer(asked.get<std::string>().substr(1))]);
  if (keyword == "anyOf" || keyword == "oneOf" || keyword == "allOf") {
    size_t count = 0;
    for (const OrderedJson& one : asked) count += holds(value, one) ? 1 : 0;
    return keyword == "anyOf" ? count > 0 : count == (keyword == "oneOf" ? 1 : asked.size());
  }
  if (value.is_number()) return keeps_number(value.get<double>(), keyword, asked);
  if (value.is_string()) return keeps_string(value.get<std::string>(), keyword, asked);
  if (value.is_array()) return keeps_array(value, keyword, asked, schema);
  return !value.is_object() || keeps_object(value, keyword, asked, schema);
}

bool SchemaValidator::has_type(const OrderedJson& value, const OrderedJson& asked) {
  if (asked.is_array())
    return std::any_of(asked.begin(), asked.end(),
                       [&](const OrderedJson& one) { return has_type(value, one); });
  const std::string type = asked;
  if (type == "integer")
    return value.is_number() && value.get<double>() == std::floor(value.get<double>());
  return type == (value.is_null()      ? "null"
                  : value.is_boolean() ? "boolean"
                  : value.is_number()  ? "number"
                  : value.is_string()  ? "string"
                  : value.is_array()   ? "array"
                                       : "object");
}

bool SchemaValidator::keeps_number(double value, const std::string& keyword,
                                   const OrderedJson& asked) {
  if (keyword == "minimum") return value >= asked.get<double>();
  if (keyword == "maximum") return value <= asked.get<double>();
  if (keyword == "exclusiveMinimum") return value > asked.get<double>();
  return keyword != "exclusiveMaximum" || value < asked.get<double>();
}

bool SchemaValidator::keeps_string(const std::string& value, const std::string& keyword,
                                   const OrderedJson& asked) {
  int64_t chars = 0;
  for (const char c : value) chars += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
  if (keyword == "minLength") return chars >= asked.get<int64_t>();
  if (keyword == "maxLength") return chars <= asked.get<int64_t>();
  return keyword != "pattern" || std::regex_search(value, std::regex(asked.get<std::string>()));
}

bool SchemaValidator::keeps_array(const OrderedJson& value, const std::string& keyword,
                                  const OrderedJson& asked, const OrderedJson& schema) const {
  const size_t first = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
  if (keyword == "minItems") return value.size() >= asked.get<size_t>();
  if (keyword == "maxItems") return value.size() <= asked.get<size_t>();
  for (size_t i = 0; i < value.size(); ++i) {
    if (keyword == "prefixItems" && i < first && !holds(value[i], asked[i])) return false;
    if (keyword == "items" && i >= first && !holds(value[i], asked)) return false;
  }
  return true;
}

bool SchemaValidator::keeps_object(const OrderedJson& value, const std::string& keyword,
                                   const OrderedJson& asked, const OrderedJson& schema) const {
  if (keyword == "required")
    return std::all_of(asked.begin(), asked.end(), [&](const OrderedJson& name) {
      return value.contains(name.get<std::string>());
    });
  const OrderedJson properties = schema.value("properties", OrderedJson::object());
  for (const auto& [name, member] : value.items()) {
    if (keyword == "properties" && asked.contains(name) && !holds(member, asked[name]))
      return false;
    if (keyword == "additionalProperties" && !properties.contains(name) && !holds(member, asked))
      return false;
  }
  return true;
}

}  // namespace foresail
