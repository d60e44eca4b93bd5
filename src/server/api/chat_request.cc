// POST /v1/chat/completions
#include <fmt/core.h>

#include <array>

#include "base/json_tree.h"
#include "server/api/chat_messages.h"
#include "server/api/common_fields.h"
#include "server/api/output_fields.h"
#include "server/api/rendered_chat.h"
#include "text/chat_prompt.h"
#include "text/render_input.h"

namespace foresail {
namespace {

// A template looks each of its names up among all of them.
constexpr size_t kMaxTemplateVariables = 64;
constexpr std::array<std::string_view, 4> kUnserved = {"functions", "function_call", "audio",
                                                       "web_search_options"};
// Of the prompt. "add_special_tokens": on top of the template's own.
constexpr std::array<std::string_view, 3> kUnservedInPrompts = {"documents", "echo",
                                                                "add_special_tokens"};

void read_template_variables(JsonObject& fields, RenderInput& input) {
  std::string effort;
  fields.text("reasoning_effort", 64, effort);
  if (!effort.empty()) input.extra["reasoning_effort"] = effort;
  const OrderedJson* variables = fields.find("chat_template_kwargs");
  if (variables == nullptr) return;
  if (!variables->is_object()) return fields.refuse("chat_template_kwargs", "must be an object");
  if (variables->size() > kMaxTemplateVariables)
    return fields.refuse("chat_template_kwargs",
                         fmt::format("holds more than {} variables", kMaxTemplateVariables));
  for (const auto& [name, value] : variables->items()) {
    if (is_given_to_templates(name))
      return fields.refuse("chat_template_kwargs", fmt::format("must not set \"{}\"", name));
    input.extra[name] = value;
  }
}

// Ends the prompt with the last message's own text, so that the model goes on in it.
bool cut_after_last_message(std::vector<TemplatePiece>& pieces, const std::string& content) {
  const size_t end = content.find_last_not_of(" \t\r\n");
  const std::string text = content.substr(0, end == content.npos ? 0 : end + 1);
  for (size_t i = pieces.size(); i-- > 0 && !text.empty();) {
    const size_t at = pieces[i].from_template ? std::string::npos : pieces[i].text.rfind(text);
    if (at == std::string::npos) continue;
    pieces[i].text.erase(at + text.size());
    pieces.resize(i + 1);
    return true;
  }
  return false;
}

// Whether there were any. null stands in messages that only call tools.
bool empty_missing_contents(OrderedJson& messages) {
  bool any = false;
  for (OrderedJson& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_null()) continue;
    *content = "";
    any = true;
  }
  return any;
}

ReasoningStart reasoning_start(const RenderedChat& chat, const ChatSyntax& syntax) {
  if (syntax.reasoning == nullptr || chat.closes_reasoning) return ReasoningStart::kNone;
  return chat.opens_reasoning || syntax.reasoning->always_reasons ? ReasoningStart::kUnderWay
                                                                  : ReasoningStart::kPossible;
}

// With its copies of what a client sent, which are let go of as that is.
struct ClientInput : RenderInput {
  ~ClientInput() {
    for (OrderedJson* const value : {&messages, &tools, &extra}) take_apart(*value);
  }
};

}  // namespace

ApiResult<RenderedChat> render_chat(const OrderedJson& body, const ServedModel& model) {
  if (auto error = check_object(body)) return tl::unexpected(*error);
  JsonObject fields(body);
  return render_chat(fields, model);
}

ApiResult<RenderedChat> render_chat(JsonObject& fields, const ServedModel& model) {
  ClientInput input;
  RenderedChat chat;
  refuse_unserved(fields, kUnservedInPrompts);
  if (fields.has("chat_template"))
    fields.refuse("chat_template", "is refused: templates come with the model, not with a request");
  read_messages(fields, input.messages);
  chat.tools = read_tools(fields, model, input.messages);
  if (chat.tools.may_call()) input.tools = chat.tools.listed;
  read_template_variables(fields, input);
  bool continues = false;
  input.add_generation_prompt = true;
  fields.boolean("add_generation_prompt", input.add_generation_prompt);
  fields.boolean("continue_final_message", continues);
  if (continues && input.add_generation_prompt && fields.has("add_generation_prompt"))
    fields.refuse("continue_final_message", "and 'add_generation_prompt' exclude each other");
  if (fields.fault()) return tl::unexpected(api_error(*fields.fault()));
  if (continues) input.add_generation_prompt = false;
  if (model.tokenizer == nullptr || model.chat_template == nullptr)
    return tl::unexpected(
        api_error(400, "no_chat_template", "this model has no chat template: use /v1/completions"));

  auto pieces = model.chat_template->render_pieces(input);
  // Templates that know of no calls join whatever the content is to text.
  if (!pieces && empty_missing_contents(input.messages))
    pieces = model.chat_template->render_pieces(input);
  if (!pieces)
    return tl::unexpected(
        api_error({fmt::format("the model's chat template refused: {}", pieces.error().message),
                   "messages"}));
  if (continues) {
    const OrderedJson& content = input.messages.back()["content"];
    if (!content.is_string() || !cut_after_last_message(*pieces, content.get<std::string>()))
      return tl::unexpected(api_error(
          {"'continue_final_message' needs a last message with text that the template shows",
           "continue_final_message"}));
  }
  for (const TemplatePiece& piece : *pieces) chat.text += piece.text;
  if (!continues && !pieces->empty() && pieces->back().from_template) {
    const std::string& last = pieces->back().text;
    const size_t begin = last.rfind("<think>"), end = last.rfind("</think>");
    chat.closes_reasoning = end != last.npos && (begin == last.npos || begin < end);
    chat.opens_reasoning = begin != last.npos && !chat.closes_reasoning;
  }
  chat.ids = encode_chat(*pieces, *model.tokenizer);
  return chat;
}

ApiResult<GenerationSpec> parse_chat(const OrderedJson& body, const ServedModel& model,
                                     const MayCompile& may_compile) {
  if (auto error = check_object(body)) return tl::unexpected(*error);
  JsonObject fields(body);
  if (auto error = check_model_name(fields, model)) return tl::unexpected(*error);
  GenerationSpec spec;
  read_openai_options(fields, model, spec);
  refuse_unserved(fields, kUnserved);
  bool logprobs = false;
  int top_logprobs = 0;
  fields.boolean("logprobs", logprobs);
  fields.integer("top_logprobs", 0, model.limits.max_logprobs, top_logprobs);
  if (top_logprobs > 0 && !logprobs) fields.refuse("top_logprobs", "needs 'logprobs' to be true");
  if (logprobs) spec.options.top_logprobs = top_logprobs;
  int64_t max_tokens = 0;  // 0: the room left
  fields.integer("max_tokens", 1, INT32_MAX, max_tokens);
  fields.integer("max_completion_tokens", 1, INT32_MAX, max_tokens);
  const OutputForm form = read_output_form(fields);
  bool separates = true;
  fields.boolean("separate_reasoning", separates);
  fields.boolean("stream_reasoning", spec.parsing.streams_reasoning);
  fields.boolean("include_reasoning", spec.include_reasoning);
  if (fields.fault()) return tl::unexpected(api_error(*fields.fault()));
  ApiResult<RenderedChat> chat = render_chat(fields, model);
  if (!chat) return tl::unexpected(chat.error());
  const bool may_call = chat->tools.may_call();
  const ReasoningStart reasoning = reasoning_start(*chat, model.syntax);
  compile_output(fields, form, {reasoning, may_call ? &chat->tools : nullptr}, model, may_compile,
                 spec.options.grammar);
  if (fields.fault()) return tl::unexpected(api_error(*fields.fault()));
  fields.add_unread(kMostIgnoredFields, spec.ignored_fields);
  spec.syntax = model.syntax.only(separates, may_call);
  spec.parsing.starts_in_reasoning =
      spec.syntax.reasoning != nullptr && reasoning == ReasoningStart::kUnderWay;
  for (const auto& id : spec.syntax.ids)
    if (id) spec.options.marker_ids.push_back(*id);
  spec.parsing.only_calls = chat->tools.choice == ToolRequest::Choice::kRequired;
  spec.prompts.push_back(std::move(chat->ids));
  const auto asked = max_tokens == 0 ? std::nullopt : std::optional(max_tokens);
  const LengthNames names = {
      .prompt = "messages",
      .most = fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens"};
  if (auto error = fit_context(spec, asked, model, names)) return tl::unexpected(*error);
  return spec;
}

}  // namespace foresail
