#include "text/chat_syntax.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace foresail {
namespace {

constexpr ToolSyntax kToolSyntaxes[] = {
    {.name = "deepseek_v3",
     .markers = {"", "", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                 "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"},
     .kind = "function",
     .before_arguments = "\n```json\n",
     .after_arguments = "\n```",
     .between_calls = "\n"},
    {.name = "deepseek_v31",
     .markers = {"", "", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                 "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"}},
    {.name = "kimi_k2",
     .markers = {"", "", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                 "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
     .names_are_ids = true}};

constexpr ReasoningSyntax kReasoningSyntaxes[] = {
    {.name = "deepseek_r1", .always_reasons = true}, {.name = "deepseek_v3"}, {.name = "kimi_k2"}};

// "DeepSeek-V3" and "deepseekv3" are the same.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c != '-' && c != '_' && c != '.')
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 32 : c);
  return out;
}

template <typename Syntax, size_t count>
const Syntax* find(const Syntax (&all)[count], std::string_view name) {
  std::string wanted = plain(name);
  if (wanted == "kimik2thinking" || wanted == "kimik25" || wanted == "kimi") wanted = "kimik2";
  for (const Syntax& syntax : all)
    if (plain(syntax.name) == wanted) return &syntax;
  return nullptr;
}

template <typename Syntax, size_t count>
std::vector<std::string> names_of(const Syntax (&all)[count]) {
  std::vector<std::string> names;
  for (const Syntax& syntax : all) names.emplace_back(syntax.name);
  return names;
}

bool speaks_of(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

const ToolSyntax* detect_tools(std::string_view chat_template) {
  if (speaks_of(chat_template, "<|tool_calls_section_begin|>")) return find_tool_syntax("kimi_k2");
  if (!speaks_of(chat_template, "<｜tool▁calls▁begin｜>")) return nullptr;
  return find_tool_syntax(speaks_of(chat_template, "```json") ? "deepseek_v3" : "deepseek_v31");
}

const ReasoningSyntax* detect_reasoning(std::string_view chat_template) {
  if (!speaks_of(chat_template, "</think>")) return nullptr;
  if (speaks_of(chat_template, "<|im_middle|>")) return find_reasoning_syntax("kimi_k2");
  // Hybrid models let the caller say whether to think.
  return find_reasoning_syntax(speaks_of(chat_template, "thinking") ? "deepseek_v3"
                                                                    : "deepseek_r1");
}

}  // namespace

const ToolSyntax* find_tool_syntax(std::string_view name) {
  // R1 marks its calls as V3 does.
  return find(kToolSyntaxes, plain(name) == "deepseekr1" ? "deepseek_v3" : name);
}
const ReasoningSyntax* find_reasoning_syntax(std::string_view name) {
  return find(kReasoningSyntaxes, plain(name) == "deepseekv31" ? "deepseek_v3" : name);
}
std::vector<std::string> tool_syntax_names() {
  return names_of(kToolSyntaxes);
}
std::vector<std::string> reasoning_syntax_names() {
  return names_of(kReasoningSyntaxes);
}

ChatSyntax ChatSyntax::choose(const std::string& reasoning, const std::string& tools,
                              std::string_view chat_template, const Tokenizer& tokenizer) {
  ChatSyntax syntax;
  if (reasoning == "auto")
    syntax.reasoning = detect_reasoning(chat_template);
  else if (reasoning != "none" && !(syntax.reasoning = find_reasoning_syntax(reasoning)))
    throw_error(ErrorCode::kUsage, "options.reasoning_parser {} is unknown: choose auto, none, {}",
                reasoning, fmt::join(reasoning_syntax_names(), ", "));
  if (tools == "auto")
    syntax.tools = detect_tools(chat_template);
  else if (tools != "none" && !(syntax.tools = find_tool_syntax(tools)))
    throw_error(ErrorCode::kUsage, "options.tool_call_parser {} is unknown: choose auto, none, {}",
                tools, fmt::join(tool_syntax_names(), ", "));
  for (size_t i = 0; i < kChatMarkerCount; ++i) {
    const std::string_view text = syntax.text(static_cast<ChatMarker>(i));
    if (!text.empty()) syntax.ids[i] = tokenizer.find_control(text);
  }
  return syntax;
}

ChatSyntax ChatSyntax::only(bool with_reasoning, bool with_tools) const {
  ChatSyntax less = *this;
  if (!with_reasoning) less.reasoning = nullptr;
  if (!with_tools) less.tools = nullptr;
  for (size_t i = 0; i < kChatMarkerCount; ++i)
    if (less.text(static_cast<ChatMarker>(i)).empty()) less.ids[i].reset();
  return less;
}

std::string_view ChatSyntax::text(ChatMarker marker) const {
  if (marker == ChatMarker::kThinkBegin) return reasoning == nullptr ? "" : "<think>";
  if (marker == ChatMarker::kThinkEnd) return reasoning == nullptr ? "" : "</think>";
  return tools == nullptr ? "" : tools->markers[static_cast<size_t>(marker)];
}

}  // namespace foresail
