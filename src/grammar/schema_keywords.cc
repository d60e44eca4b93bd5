#include "grammar/schema_keywords.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/json.h"

namespace foresail {
namespace {

constexpr std::pair<std::string_view, Types> kTypeNames[] = {
    {"null", kNull},       {"boolean", kBoolean},
    {"integer", kInteger}, {"number", kNumber | kInteger},
    {"string", kString},   {"array", kArray},
    {"object", kObject}};

constexpr std::pair<std::string_view, Types> kKeptBy[] = {{"minimum", kNumber | kInteger},
                                                          {"maximum", kNumber | kInteger},
                                                          {"exclusiveMinimum", kNumber | kInteger},
                                                          {"exclusiveMaximum", kNumber | kInteger},
                                                          {"minLength", kString},
                                                          {"maxLength", kString},
                                                          {"pattern", kString},
                                                          {"format", kString},
                                                          {"items", kArray},
                                                          {"prefixItems", kArray},
                                                          {"minItems", kArray},
                                                          {"maxItems", kArray},
                                                          {"properties", kObject},
                                                          {"required", kObject},
                                                          {"additionalProperties", kObject}};

constexpr std::array<std::string_view, 7> kGeneral = {"type",  "enum",  "const", "$ref",
                                                      "anyOf", "oneOf", "allOf"};
constexpr std::array<std::string_view, 14> kAnnotations = {
    "title", "description", "default",    "examples", "$schema",   "$id",           "$comment",
    "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "discriminator", "strict"};

Types types_kept_by(std::string_view keyword) {
  for (const auto& [name, types] : kKeptBy)
    if (name == keyword) return types;
  return 0;
}

template <typename List>
bool holds(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_annotation(std::string_view keyword) {
  return holds(kAnnotations, keyword) || keyword.starts_with("x-");
}

// Keywords that are not kept, in a form that asks for nothing.
bool asks_for_nothing(std::string_view keyword, const OrderedJson& value) {
  if (keyword == "uniqueItems" || keyword == "nullable") return value == OrderedJson(false);
  if (keyword == "minProperties") return value == OrderedJson(0);
  // There are none that the schema does not name.
  if (keyword == "additionalItems" || keyword == "unevaluatedItems" ||
      keyword == "unevaluatedProperties")
    return value == OrderedJson(false);
  return false;
}

const OrderedJson& followed(const OrderedJson& schema, const OrderedJson& root) {
  const OrderedJson* at = &schema;
  for (int hops = 0; hops < 16 && at->is_object(); ++hops) {
    const auto ref = at->find("$ref");
    if (ref == at->end() || !ref->is_string() ||
        !ref->get_ref<const std::string&>().starts_with('#'))
      break;
    try {
      const OrderedJson::json_pointer pointer(ref->get<std::string>().substr(1));
      if (!root.contains(pointer)) break;
      at = &root[pointer];
    } catch (const OrderedJson::exception&) {
      break;
    }
  }
  return *at;
}

// The only values that a schema allows, where it lists them; null: any.
OrderedJson constants_of(const OrderedJson& schema) {
  if (!schema.is_object()) return nullptr;
  if (const auto found = schema.find("const"); found != schema.end())
    return OrderedJson::array({*found});
  if (const auto found = schema.find("enum"); found != schema.end() && found->is_array())
    return *found;
  return nullptr;
}

bool have_nothing_in_common(const OrderedJson& a, const OrderedJson& b) {
  if (a.is_null() || b.is_null()) return false;
  return std::none_of(a.begin(), a.end(), [&](const OrderedJson& value) {
    return std::find(b.begin(), b.end(), value) != b.end();
  });
}

// The types of values that are valid; without a "type" the other keywords say nothing of values of
// other types.
Types valid_types(const OrderedJson& schema) {
  const OrderedJson constants = constants_of(schema);
  const auto found = schema.find("type");
  if (constants.is_null() && found == schema.end()) return kAllTypes;
  Types types = 0;
  if (constants.is_null()) {
    const OrderedJson names = found->is_array() ? *found : OrderedJson::array({*found});
    for (const OrderedJson& name : names)
      if (name.is_string()) types |= type_named(name.get_ref<const std::string&>());
  } else {
    for (const OrderedJson& value : constants) types |= type_of(value);
  }
  return types;
}

bool is_required(const OrderedJson& schema, const std::string& name) {
  const auto required = schema.find("required");
  return required != schema.end() && required->is_array() &&
         std::find(required->begin(), required->end(), name) != required->end();
}

bool exclude(const OrderedJson& a, const OrderedJson& b, const OrderedJson& root) {
  if (!a.is_object() || !b.is_object()) return false;
  // What is generated for one and valid for the other.
  const Types common = (valid_types(a) & implied_types(a) & valid_types(b)) |
                       (valid_types(b) & implied_types(b) & valid_types(a));
  if (common == 0 || have_nothing_in_common(constants_of(a), constants_of(b))) return true;
  if (common != kObject) return false;
  const auto properties = a.find("properties");
  const auto others = b.find("properties");
  if (properties == a.end() || others == b.end()) return false;
  for (const auto& [name, value] : properties->items()) {
    const auto other = others->find(name);
    if (other == others->end() || !is_required(a, name) || !is_required(b, name)) continue;
    if (have_nothing_in_common(constants_of(followed(value, root)),
                               constants_of(followed(*other, root))))
      return true;
  }
  return false;
}

}  // namespace

Types type_named(std::string_view name) {
  for (const auto& [known, type] : kTypeNames)
    if (known == name) return type;
  return 0;
}

Types type_of(const OrderedJson& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number_float())
    return value.get<double>() == std::floor(value.get<double>()) ? kInteger | kNumber : kNumber;
  if (value.is_number()) return kInteger | kNumber;
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

Types implied_types(const OrderedJson& schema) {
  Types types = 0;
  for (const auto& [name, value] : schema.items()) types |= types_kept_by(name);
  return types == 0 ? kAllTypes : types;
}

std::string unsupported_keyword(const OrderedJson& schema) {
  for (const auto& [name, value] : schema.items()) {
    if (types_kept_by(name) != 0 || holds(kGeneral, name) || is_annotation(name) ||
        asks_for_nothing(name, value))
      continue;
    return fmt::format("the keyword \"{}\" is not supported", name.substr(0, 100));
  }
  return {};
}

std::string keyword_beside(const OrderedJson& schema, std::string_view keyword) {
  for (const auto& [name, value] : schema.items())
    if (name != keyword && name != "type" && !is_annotation(name)) return name;
  return {};
}

bool exclude_each_other(const OrderedJson& schemas, const OrderedJson& root) {
  constexpr size_t kMost = 64;  // pairs are compared
  if (schemas.size() > kMost) return false;
  for (size_t i = 0; i < schemas.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (!exclude(followed(schemas[i], root), followed(schemas[j], root), root)) return false;
  return true;
}

std::string_view pattern_of_format(std::string_view format) {
  // Days up to 28 exist in every month.
#define FORESAIL_DATE "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
#define FORESAIL_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define FORESAIL_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define FORESAIL_OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
  static constexpr std::pair<std::string_view, std::string_view> kPatterns[] = {
      {"date", "^" FORESAIL_DATE "$"},
      {"time", "^" FORESAIL_TIME "$"},
      {"date-time", "^" FORESAIL_DATE "T" FORESAIL_TIME "$"},
      {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
      {"ipv4", "^" FORESAIL_OCTET "(\\." FORESAIL_OCTET "){3}$"},
      {"hostname", "^" FORESAIL_LABEL "(\\." FORESAIL_LABEL "){0,3}$"},
      {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,1}@" FORESAIL_LABEL
                "(\\." FORESAIL_LABEL "){1,3}$"}};
#undef FORESAIL_DATE
#undef FORESAIL_TIME
#undef FORESAIL_LABEL
#undef FORESAIL_OCTET
  for (const auto& [name, pattern] : kPatterns)
    if (name == format) return pattern;
  return {};
}

std::string percent_decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace foresail
