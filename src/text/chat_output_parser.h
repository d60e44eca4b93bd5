// Splits a chat model's output into reasoning, content and tool calls as it comes. What it returns
// depends on the output only, not on where the pieces of the text were cut, once joined.
// One per output, one thread; the syntax outlives it.
#pragma once

#include <string>
#include <vector>

#include "text/chat_syntax.h"

namespace foresail {

// What is new of one call. Id and name come once, in the first of its deltas.
struct ToolCallDelta {
  int index = 0;
  std::string id, name;
  std::string arguments;  // JSON text, or a piece of it
};

struct ChatDelta {
  std::string reasoning, content;
  std::vector<ToolCallDelta> calls;
};

class ChatOutputParser {
 public:
  struct Options {
    bool starts_in_reasoning = false;
    bool streams_reasoning = true;  // else it comes in one piece when it is complete
    bool only_calls = false;        // must follow: what is cut short of a call is no content
    std::string call_id_prefix;     // ids of calls that bring none: prefix and index
  };
  ChatOutputParser(const ChatSyntax& syntax, Options options);

  // The text before a token and the token itself, if it is a marker by its id; a marker has no
  // text. Appends to `delta`.
  void push(std::string_view text, int32_t token, ChatDelta& delta);
  // The output has ended: what was held back. `cut`: by a limit and not by the model, so a call
  // without a whole name is no text that the model meant to write. `broken`: replacement characters
  // for the bytes of a character that was cut, which may have belonged to a marker as what is held
  // back may.
  void finish(ChatDelta& delta, bool cut, std::string_view broken = {});

  bool in_reasoning() const { return state_ == State::kReasoning; }
  bool in_calls() const { return state_ != State::kReasoning && state_ != State::kContent; }
  // Its arguments are not whole yet. (Some models end right after them.)
  bool in_unfinished_call() const;
  int call_count() const { return call_count_; }

 private:
  enum class State { kReasoning, kContent, kBetweenCalls, kHeader, kName, kArguments };

  void scan(std::string_view text);  // for markers that are text
  void on_text(std::string_view text);
  void on_marker(ChatMarker marker);
  void on_reasoning(std::string_view text);
  void on_content(std::string_view text);
  void on_name(std::string_view text);
  void on_arguments(std::string_view text);
  std::string_view name_in(std::string_view header) const;
  void start_call(std::string_view header);
  void end_reasoning();
  void end_call();

  const ChatSyntax& syntax_;
  Options options_;
  std::vector<ChatMarker> text_markers_;
  ChatDelta* delta_ = nullptr;  // of the call under way
  State state_ = State::kContent;
  std::string held_;        // may become a marker
  std::string reasoning_;   // not told yet
  std::string whitespace_;  // after reasoning or before content: told only if more comes
  std::string header_;      // of the call that begins
  std::string arguments_;   // of the call under way, as told
  std::string tail_;        // of arguments: may be what follows them
  bool any_reasoning_ = false, any_content_ = false, trims_content_ = false;
  int call_count_ = 0;
};

}  // namespace foresail
