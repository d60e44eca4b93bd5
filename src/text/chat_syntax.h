// How a family of models marks reasoning and tool calls in its output. Markers that are tokens of
// the model are told by their id, so text that looks like one stays text; others by their text.
// A value; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace foresail {

enum class ChatMarker {
  kThinkBegin,
  kThinkEnd,
  kCallsBegin,
  kCallsEnd,
  kCallBegin,
  kSeparator,  // between what is said about a call and the call itself
  kCallEnd
};
inline constexpr size_t kChatMarkerCount = 7;

// One call: kCallBegin, `kind` or a name or an id, kSeparator, [name, `before_arguments`] JSON
// [`after_arguments`], kCallEnd.
struct ToolSyntax {
  std::string_view name;                                   // of --tool-call-parser
  std::array<std::string_view, kChatMarkerCount> markers;  // those of reasoning are empty
  std::string_view kind = {};
  std::string_view before_arguments = {}, after_arguments = {};
  std::string_view between_calls = {};
  // The text before the separator is functions.NAME:INDEX and is the call's id.
  bool names_are_ids = false;
};

struct ReasoningSyntax {
  std::string_view name;  // of --reasoning-parser
  // The output begins in reasoning even where the prompt does not say so.
  bool always_reasons = false;
};

// By a name or an older spelling of it; null: none. Names: see tool_syntax_names().
const ToolSyntax* find_tool_syntax(std::string_view name);
const ReasoningSyntax* find_reasoning_syntax(std::string_view name);
std::vector<std::string> tool_syntax_names();
std::vector<std::string> reasoning_syntax_names();

// What a model's output is read by.
struct ChatSyntax {
  const ToolSyntax* tools = nullptr;           // null: calls are text
  const ReasoningSyntax* reasoning = nullptr;  // null: so is reasoning
  // Of the markers that are tokens.
  std::array<std::optional<int32_t>, kChatMarkerCount> ids = {};

  // Names as above, "none", or "auto": what the chat template speaks of. Throws Error{kUsage}.
  static ChatSyntax choose(const std::string& reasoning, const std::string& tools,
                           std::string_view chat_template, const Tokenizer& tokenizer);

  // The same, reading less.
  ChatSyntax only(bool with_reasoning, bool with_tools) const;
  // Empty: the marker is not looked for.
  std::string_view text(ChatMarker marker) const;
  std::optional<int32_t> id(ChatMarker marker) const { return ids[static_cast<size_t>(marker)]; }
};

}  // namespace foresail
