// From what a request asks for to a grammar. Bounded in size and so in time; any thread.
#pragma once

#include <string_view>

#include "base/json_types.h"
#include "grammar/grammar.h"

namespace foresail {

inline constexpr size_t kMaxSchemaBytes = 256 << 10;

// Messages go on from the name of the field at fault: "at "#/properties/a": ..", "has a ..".
Result<GrammarPtr> compile_json_schema(const OrderedJson& schema);
// Refuses text that is no JSON.
Result<GrammarPtr> compile_schema_text(std::string_view schema);
Result<GrammarPtr> compile_json_object();
// Of the whole output.
Result<GrammarPtr> compile_regex(std::string_view pattern);

// `write` adds what the output may be after the state it is given, and returns where that ends.
template <typename Write>
Result<GrammarPtr> compile_grammar(Write write) {
  try {
    GrammarBuilder builder;
    const GrammarBuilder::Rule rule = builder.rule();
    builder.skip(write(builder, rule.start), rule.end);
    return std::move(builder).finish(rule);
  } catch (const GrammarFault& fault) {
    return tl::unexpected(fault.error);
  }
}

}  // namespace foresail
