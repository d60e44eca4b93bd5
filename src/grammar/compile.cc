#include "grammar/compile.h"

#include <fmt/core.h>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace foresail {

Result<GrammarPtr> compile_json_schema(const OrderedJson& schema) {
  return compile_grammar([&](GrammarBuilder& builder, int32_t from) {
    return add_json_schema(builder, from, schema);
  });
}

Result<GrammarPtr> compile_schema_text(std::string_view schema) {
  if (schema.size() > kMaxSchemaBytes)
    return input_error(fmt::format("is longer than {} bytes", kMaxSchemaBytes));
  const auto json = parse_ordered_json(schema, {.max_depth = 128});
  if (!json) return input_error("is no JSON: " + json.error().message);
  return compile_json_schema(*json);
}

Result<GrammarPtr> compile_json_object() {
  return compile_grammar(add_json_object);
}

Result<GrammarPtr> compile_regex(std::string_view pattern) {
  return compile_grammar([&](GrammarBuilder& builder, int32_t from) {
    return add_regex(builder, from, pattern, {}, add_utf8);
  });
}

}  // namespace foresail
