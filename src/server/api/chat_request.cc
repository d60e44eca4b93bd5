// POST /v1/chat/completions
#include <fmt/format.h>

#include <array>

#include "server/api/chat_messages.h"
#include "server/api/common_fields.h"
#include "text/chat_prompt.h"

namespace foresail {
namespace {

constexpr std::array<std::string_view, 17> kUnsupported = {"prompt_logprobs",
                                                           "functions",
                                                           "function_call",
                                                           "guided_json",
                                                           "guided_regex",
                                                           "guided_choice",
                                                           "guided_grammar",
                                                           "regex",
                                                           "ebnf",
                                                           "json_schema",
                                                           "structured_outputs",
                                                           "stop_regex",
                                                           "use_beam_search",
                                                           "audio",
                                                           "web_search_options",
                                                           "allowed_token_ids",
                                                           "logits_processors"};

void refuse_what_changes_the_answer(JsonObject& fields) {
  refuse_unsupported(fields, kUnsupported);
  if (fields.has("chat_template"))
    fields.refuse("chat_template", "is refused: templates come with the model, not with a request");
  if (const OrderedJson* format = fields.find("response_format");
      format != nullptr &&
      !(format->is_object() && format->contains("type") && (*format)["type"] == "text"))
    fields.refuse("response_format", "is not supported by this server, other than type \"text\"");
  const OrderedJson* choice = fields.find("tool_choice");
  const bool no_tools = choice != nullptr && *choice == "none";
  if (choice != nullptr && !no_tools && *choice != "auto")
    fields.refuse("tool_choice", "is not supported by this server, other than \"none\"");
  const OrderedJson* tools = fields.find("tools");
  if (tools != nullptr && asks_for_something(*tools) && !no_tools)
    fields.refuse("tools",
                  "is not supported by this server: leave it out or set tool_choice "
                  "\"none\"");
}

void read_template_variables(JsonObject& fields, RenderInput& input) {
  std::string effort;
  fields.text("reasoning_effort", 64, effort);
  if (!effort.empty()) input.extra["reasoning_effort"] = effort;
  const OrderedJson* variables = fields.find("chat_template_kwargs");
  if (variables == nullptr) return;
  if (!variables->is_object()) return fields.refuse("chat_template_kwargs", "must be an object");
  for (const auto& [name, value] : variables->items()) {
    if (name == "messages" || name == "tools" || name == "documents" || name == "bos_token" ||
        name == "eos_token" || name == "add_generation_prompt")
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

}  // namespace

ApiResult<RenderedChat> render_chat(const OrderedJson& body, const ServedModel& model) {
  if (auto error = check_object(body)) return tl::unexpected(*error);
  JsonObject fields(body);
  RenderInput input;
  read_messages(fields, input.messages);
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
  RenderedChat chat;
  for (const TemplatePiece& piece : *pieces) chat.text += piece.text;
  chat.ids = encode_chat(*pieces, *model.tokenizer);
  return chat;
}

ApiResult<GenerationSpec> parse_chat(const OrderedJson& body, const ServedModel& model) {
  if (auto error = check_object(body)) return tl::unexpected(*error);
  JsonObject fields(body);
  if (auto error = check_model_name(fields, model)) return tl::unexpected(*error);
  GenerationSpec spec;
  read_sampling(fields, model, 2, spec);
  read_stops(fields, model, spec);
  read_openai_options(fields, model, spec);
  refuse_what_changes_the_answer(fields);
  bool logprobs = false;
  int top_logprobs = 0;
  fields.boolean("logprobs", logprobs);
  fields.integer("top_logprobs", 0, model.limits.max_logprobs, top_logprobs);
  if (top_logprobs > 0 && !logprobs) fields.refuse("top_logprobs", "needs 'logprobs' to be true");
  if (logprobs) spec.options.top_logprobs = top_logprobs;
  int64_t max_tokens = 0;  // 0: the room left
  fields.integer("max_tokens", 1, INT32_MAX, max_tokens);
  fields.integer("max_completion_tokens", 1, INT32_MAX, max_tokens);
  if (fields.fault()) return tl::unexpected(api_error(*fields.fault()));
  ApiResult<RenderedChat> chat = render_chat(body, model);
  if (!chat) return tl::unexpected(chat.error());
  spec.prompts.push_back(std::move(chat->ids));
  const auto asked = max_tokens == 0 ? std::nullopt : std::optional(max_tokens);
  if (auto error = fit_context(spec, asked, model, "messages")) return tl::unexpected(*error);
  return spec;
}

}  // namespace foresail
