#include "server/api/output_fields.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "grammar/compile.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace foresail {
namespace {

using Kind = OutputForm::Kind;
using Rule = GrammarBuilder::Rule;

// Calls of one answer where the format numbers them; further ones are not foreseen.
constexpr int64_t kMostNumberedCalls = 8;

void read_response_format(JsonObject& fields, std::vector<OutputForm>& forms) {
  const OrderedJson* format = fields.find("response_format");
  if (format == nullptr) return;
  const OrderedJson type =
      format->is_object() ? format->value("type", OrderedJson()) : OrderedJson();
  if (type == "text") return;
  if (type == "json_object") {
    forms.push_back({Kind::kJsonObject, {}, "response_format"});
  } else if (type == "json_schema") {
    const OrderedJson named = format->value("json_schema", OrderedJson());
    if (!named.is_object() || !named.contains("schema"))
      return fields.refuse("response_format", "needs \"json_schema\": {\"schema\": {..}}");
    forms.push_back({Kind::kJsonSchema, named["schema"], "response_format"});
  } else {
    fields.refuse("response_format",
                  "must have the type \"text\", \"json_object\" or \"json_schema\"");
  }
}

void read_one(JsonObject& fields, const OrderedJson& value, Kind kind, const std::string& field,
              std::vector<OutputForm>& forms) {
  OrderedJson form = value;
  if (kind == Kind::kJsonSchema && value.is_string()) {
    auto schema = parse_ordered_json(value.get_ref<const std::string&>(), {.max_depth = 128});
    if (!schema) return fields.refuse(field, "is no JSON: " + schema.error().message);
    form = std::move(*schema);
  }
  if (kind == Kind::kRegex && !value.is_string()) return fields.refuse(field, "must be a string");
  if (kind == Kind::kChoice) {
    const auto is_text = [](const OrderedJson& one) {
      return one.is_string() && !one.get_ref<const std::string&>().empty();
    };
    if (!value.is_array() || value.empty() || !std::all_of(value.begin(), value.end(), is_text))
      return fields.refuse(field, "must be a list of texts that are not empty");
  }
  if (kind == Kind::kJsonObject && value != OrderedJson(true)) return;
  forms.push_back({kind, std::move(form), field});
}

int32_t add_form(GrammarBuilder& builder, int32_t from, const OutputForm& form) {
  switch (form.kind) {
    case Kind::kJsonSchema:
      return add_json_schema(builder, from, form.value);
    case Kind::kRegex:
      return add_regex(builder, from, form.value.get_ref<const std::string&>(), {}, add_utf8);
    case Kind::kChoice:
      return builder.one_of(from, form.value.get<std::vector<std::string>>());
    default:
      return add_json_object(builder, from);
  }
}

// A marker, as the token that it is or as text.
int32_t add_marker(GrammarBuilder& builder, int32_t from, const ChatSyntax& syntax,
                   ChatMarker marker) {
  const std::optional<int32_t> id = syntax.id(marker);
  if (!id) return builder.literal(from, syntax.text(marker));
  return builder.symbol(from, control_symbol(*id), control_symbol(*id));
}

// Anything that does not hold the marker; it may end anywhere. `found`: the marker is complete.
int32_t add_free_text(GrammarBuilder& builder, int32_t from, const ChatSyntax& syntax,
                      ChatMarker marker, int32_t found) {
  const int32_t free = builder.state();
  builder.skip(from, free);
  if (const std::optional<int32_t> id = syntax.id(marker)) {
    const int32_t symbol = control_symbol(*id);
    builder.symbols(free, 0, symbol - 1, free);
    if (symbol < kLastSymbol) builder.symbols(free, symbol + 1, kLastSymbol, free);
    builder.symbols(free, symbol, symbol, found);
    return free;
  }
  // One state per beginning of the marker that has just been written (Knuth, Morris, Pratt 1977).
  const std::string_view text = syntax.text(marker);
  const int32_t end = builder.state();
  std::vector<int32_t> states = {free};
  while (states.size() < text.size()) states.push_back(builder.state());
  const auto longest_start = [&](std::string written) {
    while (!text.starts_with(written)) written.erase(0, 1);
    return written.size();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      const size_t next = longest_start(std::string(text.substr(0, i)) + static_cast<char>(byte));
      builder.symbols(states[i], byte, byte, next == text.size() ? found : states[next]);
    }
    builder.symbols(states[i], control_symbol(0), kLastSymbol, free);
    builder.skip(states[i], end);
  }
  return end;
}

int32_t add_call(GrammarBuilder& builder, int32_t from, const ChatSyntax& syntax,
                 const std::vector<Rule>& arguments, const ToolRequest& tools, int64_t number) {
  const ToolSyntax& format = *syntax.tools;
  from = add_marker(builder, from, syntax, ChatMarker::kCallBegin);
  const int32_t end = builder.state();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = tools.functions[i].name;
    const bool name_follows = !format.kind.empty();
    const std::string head = format.names_are_ids ? fmt::format("functions.{}:{}", name, number)
                             : name_follows       ? std::string(format.kind)
                                                  : name;
    int32_t at = add_marker(builder, builder.literal(from, head), syntax, ChatMarker::kSeparator);
    if (name_follows) at = builder.literal(builder.literal(at, name), format.before_arguments);
    at = builder.literal(builder.call(at, arguments[i]), format.after_arguments);
    builder.skip(at, end);
  }
  return add_marker(builder, end, syntax, ChatMarker::kCallEnd);
}

// At least one call; kCallsBegin has been written.
int32_t add_calls(GrammarBuilder& builder, int32_t from, const ChatSyntax& syntax,
                  const ToolRequest& tools) {
  std::vector<Rule> arguments;
  for (const ToolRequest::Function& function : tools.functions) {
    const Rule rule = builder.rule();
    const bool any = function.parameters.is_null() || function.parameters.empty();
    builder.skip(any ? add_json_object(builder, rule.start)
                     : add_json_schema(builder, rule.start, function.parameters),
                 rule.end);
    arguments.push_back(rule);
  }
  const int32_t end = builder.state();
  const int64_t most = !tools.parallel ? 1 : syntax.tools->names_are_ids ? kMostNumberedCalls : 2;
  for (int64_t i = 0; i < most; ++i) {
    const int32_t call = builder.state();
    builder.skip(i == 0 ? from : builder.literal(from, syntax.tools->between_calls), call);
    from = add_call(builder, call, syntax, arguments, tools, tools.calls_before + i);
    builder.skip(from, end);
    // Unnumbered calls are all alike.
    if (tools.parallel && i == 1 && !syntax.tools->names_are_ids)
      builder.skip(builder.literal(from, syntax.tools->between_calls), call);
  }
  return add_marker(builder, end, syntax, ChatMarker::kCallsEnd);
}

int32_t add_output(GrammarBuilder& builder, int32_t from, const OutputForm& form,
                   const OutputFrame& frame, const ChatSyntax& syntax) {
  if (frame.reasoning != ReasoningStart::kNone) {
    const int32_t answer = builder.state(), thought = builder.state();
    if (frame.reasoning == ReasoningStart::kPossible) {
      builder.skip(from, answer);
      from = add_marker(builder, from, syntax, ChatMarker::kThinkBegin);
    }
    add_free_text(builder, from, syntax, ChatMarker::kThinkEnd, thought);
    // Models write line ends before they answer.
    builder.skip(thought, answer);
    builder.skip(builder.literal(thought, "\n\n"), answer);
    from = answer;
  }
  if (frame.tools == nullptr) return add_form(builder, from, form);
  const int32_t end = builder.state(), begun = builder.state();
  if (frame.tools->choice == ToolRequest::Choice::kRequired) {
    builder.skip(add_marker(builder, from, syntax, ChatMarker::kCallsBegin), begun);
  } else if (form.kind == Kind::kFree) {
    builder.skip(add_free_text(builder, from, syntax, ChatMarker::kCallsBegin, begun), end);
  } else {
    builder.skip(add_form(builder, from, form), end);
    builder.skip(add_marker(builder, from, syntax, ChatMarker::kCallsBegin), begun);
  }
  builder.skip(add_calls(builder, begun, syntax, *frame.tools), end);
  return end;
}

// What the grammar is compiled from.
std::string key_of(const OutputForm& form, const OutputFrame& frame) {
  OrderedJson key = {static_cast<int>(form.kind), form.value, static_cast<int>(frame.reasoning)};
  if (frame.tools != nullptr) {
    key.push_back(static_cast<int>(frame.tools->choice));
    key.push_back(frame.tools->parallel);
    key.push_back(frame.tools->calls_before);
    for (const ToolRequest::Function& function : frame.tools->functions)
      key.push_back({function.name, function.parameters});
  }
  return json_text(key);
}

}  // namespace

OutputForm read_output_form(JsonObject& fields) {
  std::vector<OutputForm> forms;
  read_response_format(fields, forms);
  const auto read = [&](JsonObject& object, const char* name, Kind kind, const std::string& field) {
    if (const OrderedJson* value = object.find(name)) read_one(fields, *value, kind, field, forms);
  };
  for (const auto& [name, kind] :
       {std::pair("json_schema", Kind::kJsonSchema), std::pair("regex", Kind::kRegex),
        std::pair("guided_json", Kind::kJsonSchema), std::pair("guided_regex", Kind::kRegex),
        std::pair("guided_choice", Kind::kChoice)})
    read(fields, name, kind, name);
  if (const OrderedJson* group = fields.find("structured_outputs")) {
    const std::string name = "structured_outputs";
    if (!group->is_object()) fields.refuse(name, "must be an object");
    const OrderedJson none = OrderedJson::object();
    JsonObject inside(group->is_object() ? *group : none);
    for (const char* unknown : {"grammar", "structural_tag"})
      if (inside.has(unknown)) fields.refuse(name + "." + unknown, "is not supported");
    for (const auto& [part, kind] :
         {std::pair("json", Kind::kJsonSchema), std::pair("regex", Kind::kRegex),
          std::pair("choice", Kind::kChoice), std::pair("json_object", Kind::kJsonObject)})
      read(inside, part, kind, name + "." + part);
  }
  if (forms.size() > 1)
    fields.refuse(forms[1].field,
                  fmt::format("and '{}' exclude each other", fields.full_name(forms[0].field)));
  return forms.empty() ? OutputForm() : std::move(forms[0]);
}

void compile_output(JsonObject& fields, const OutputForm& form, const OutputFrame& frame,
                    const ServedModel& model, const MayCompile& may_compile, GrammarPtr& grammar) {
  const bool calls = frame.tools != nullptr && frame.tools->constrains();
  OutputFrame kept = frame;
  if (form.kind == Kind::kFree && !calls) return;
  if (frame.tools != nullptr && !frame.tools->may_call()) kept.tools = nullptr;
  if (fields.fault()) return;
  const std::string field = form.kind == Kind::kFree ? "tools" : form.field;
  if (model.tokenizer == nullptr)
    return fields.refuse(field, "needs a tokenizer, and the model has none");
  const std::string key = key_of(form, kept);
  if (key.size() > kMaxSchemaBytes)
    return fields.refuse(field, fmt::format("is longer than {} bytes", kMaxSchemaBytes));
  Result<GrammarPtr> compiled = model.grammars->get(key, [&]() -> Result<GrammarPtr> {
    if (!may_compile()) return input_error("cannot be compiled now");
    return compile_grammar([&](GrammarBuilder& builder, int32_t from) {
      return add_output(builder, from, form, kept, model.syntax);
    });
  });
  if (!compiled) return fields.refuse(field, compiled.error().message);
  grammar = std::move(*compiled);
}

}  // namespace foresail
