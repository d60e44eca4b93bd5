// What a request says about the form of its output, and the grammar of that.
#pragma once

#include "base/json.h"
#include "grammar/grammar.h"
#include "server/api/generation_spec.h"
#include "server/api/json_object.h"
#include "server/api/tool_fields.h"
#include "server/served_model.h"

namespace foresail {

struct OutputForm {
  enum class Kind { kFree, kJsonObject, kJsonSchema, kRegex, kChoice };
  Kind kind = Kind::kFree;
  OrderedJson value;  // the schema, the expression, the list of texts
  std::string field;  // that asked for it, for messages
};

// response_format, json_schema, regex, guided_* and structured_outputs: at most one of them.
OutputForm read_output_form(JsonObject& fields);

// Whether reasoning comes before the answer.
enum class ReasoningStart { kNone, kPossible, kUnderWay };

// How the form is reached: after reasoning, and with tool calls or without.
struct OutputFrame {
  ReasoningStart reasoning = ReasoningStart::kNone;
  const ToolRequest* tools = nullptr;  // null: no calls
};

// Sets `grammar`; null where the output is free. What cannot be kept is a fault of its field, and
// so is what may not be compiled.
void compile_output(JsonObject& fields, const OutputForm& form, const OutputFrame& frame,
                    const ServedModel& model, const MayCompile& may_compile, GrammarPtr& grammar);

}  // namespace foresail
