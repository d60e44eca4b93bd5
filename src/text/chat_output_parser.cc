#include "text/chat_output_parser.h"

#include <algorithm>

#include "base/json.h"

namespace foresail {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Length of the longest end of `text` that is a proper beginning of `word`.
size_t possible_start(std::string_view text, std::string_view word) {
  size_t length = std::min(text.size(), word.empty() ? 0 : word.size() - 1);
  while (length > 0 && !word.starts_with(text.substr(text.size() - length))) --length;
  return length;
}

}  // namespace

ChatOutputParser::ChatOutputParser(const ChatSyntax& syntax, Options options)
    : syntax_(syntax), options_(std::move(options)) {
  if (options_.starts_in_reasoning) state_ = State::kReasoning;
  for (size_t i = 0; i < kChatMarkerCount; ++i) {
    const auto marker = static_cast<ChatMarker>(i);
    if (!syntax.text(marker).empty() && !syntax.id(marker)) text_markers_.push_back(marker);
  }
}

void ChatOutputParser::push(std::string_view text, int32_t token, ChatDelta& delta) {
  delta_ = &delta;
  scan(text);
  for (size_t i = 0; i < kChatMarkerCount; ++i) {
    if (syntax_.ids[i] != token) continue;
    on_text(std::exchange(held_, {}));
    on_marker(static_cast<ChatMarker>(i));
  }
}

void ChatOutputParser::scan(std::string_view text) {
  held_ += text;
  for (;;) {
    size_t at = std::string::npos;
    ChatMarker first{};
    for (const ChatMarker marker : text_markers_) {
      const size_t found = held_.find(syntax_.text(marker));
      if (found >= at) continue;
      at = found;
      first = marker;
    }
    if (at == std::string::npos) break;
    on_text(std::string_view(held_).substr(0, at));
    held_.erase(0, at + syntax_.text(first).size());
    on_marker(first);
  }
  size_t keep = 0;
  for (const ChatMarker marker : text_markers_)
    keep = std::max(keep, possible_start(held_, syntax_.text(marker)));
  on_text(std::string_view(held_).substr(0, held_.size() - keep));
  held_.erase(0, held_.size() - keep);
}

void ChatOutputParser::finish(ChatDelta& delta, bool cut, std::string_view broken) {
  delta_ = &delta;
  held_ += broken;
  if (options_.only_calls && state_ != State::kReasoning && state_ != State::kArguments) return;
  // After whole arguments only a marker can have begun.
  if (state_ == State::kArguments && !in_unfinished_call()) held_.clear();
  on_text(std::exchange(held_, {}));
  if (state_ == State::kReasoning) end_reasoning();
  // Without a whole name it is no call: what the model left like that is shown as it is.
  if (!cut && (state_ == State::kHeader || state_ == State::kName))
    on_content(std::exchange(header_, {}));
  if (state_ == State::kArguments) end_call();
}

bool ChatOutputParser::in_unfinished_call() const {
  return state_ == State::kArguments && !Json::accept(arguments_);
}

void ChatOutputParser::on_text(std::string_view text) {
  if (text.empty()) return;
  switch (state_) {
    case State::kReasoning:
      return on_reasoning(text);
    case State::kContent:
      return on_content(text);
    case State::kBetweenCalls:
      return;
    case State::kHeader:
      header_ += text;
      return;
    case State::kName:
      return on_name(text);
    case State::kArguments:
      return on_arguments(text);
  }
}

// White space around reasoning is no part of it.
void ChatOutputParser::on_reasoning(std::string_view text) {
  if (!any_reasoning_)
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  if (text.empty()) return;
  any_reasoning_ = true;
  whitespace_ += text;
  size_t certain = whitespace_.size();
  while (certain > 0 && is_space(whitespace_[certain - 1])) --certain;
  reasoning_.append(whitespace_, 0, certain);
  whitespace_.erase(0, certain);
  if (options_.streams_reasoning) delta_->reasoning += std::exchange(reasoning_, {});
}

void ChatOutputParser::end_reasoning() {
  delta_->reasoning += std::exchange(reasoning_, {});
  whitespace_.clear();
  state_ = State::kContent;
  trims_content_ = true;
}

void ChatOutputParser::on_content(std::string_view text) {
  if (trims_content_ && !any_content_)
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  any_content_ = any_content_ || !trimmed(text).empty();
  delta_->content += text;
}

void ChatOutputParser::on_name(std::string_view text) {
  header_ += text;
  const size_t at = header_.find(syntax_.tools->before_arguments);
  if (at == std::string::npos) return;
  // No call: with what is to come it is shown as it is.
  if (name_in(std::string_view(header_).substr(0, at)).empty()) {
    state_ = State::kHeader;
    return;
  }
  const std::string rest = header_.substr(at + syntax_.tools->before_arguments.size());
  header_.resize(at);
  start_call(std::exchange(header_, {}));
  on_arguments(rest);
}

// "functions.f:0" -> "f", where names are ids.
std::string_view ChatOutputParser::name_in(std::string_view header) const {
  constexpr std::string_view kNamespace = "functions.";
  std::string_view name = trimmed(header);
  if (!syntax_.tools->names_are_ids) return name;
  name = name.substr(0, name.rfind(':'));
  if (name.starts_with(kNamespace)) name.remove_prefix(kNamespace.size());
  return name;
}

void ChatOutputParser::start_call(std::string_view header) {
  ToolCallDelta call{.index = call_count_};
  call.name = name_in(header);
  call.id = syntax_.tools->names_are_ids ? std::string(trimmed(header))
                                         : options_.call_id_prefix + std::to_string(call_count_);
  delta_->calls.push_back(std::move(call));
  arguments_.clear();
  ++call_count_;
  state_ = State::kArguments;
}

void ChatOutputParser::on_arguments(std::string_view text) {
  tail_ += text;
  // All of what may follow the arguments is held back, and so is a beginning of it.
  const std::string_view after = syntax_.tools->after_arguments;
  const size_t keep = !after.empty() && std::string_view(tail_).ends_with(after)
                          ? after.size()
                          : possible_start(tail_, after);
  const std::string_view certain = std::string_view(tail_).substr(0, tail_.size() - keep);
  if (certain.empty()) return;
  const int index = call_count_ - 1;
  if (delta_->calls.empty() || delta_->calls.back().index != index)
    delta_->calls.push_back({.index = index});
  delta_->calls.back().arguments += certain;
  arguments_ += certain;
  tail_.erase(0, certain.size());
}

void ChatOutputParser::end_call() {
  tail_.clear();
  state_ = State::kBetweenCalls;
}

void ChatOutputParser::on_marker(ChatMarker marker) {
  if (state_ == State::kReasoning && marker != ChatMarker::kThinkBegin) end_reasoning();
  switch (marker) {
    case ChatMarker::kThinkBegin:
      if (state_ == State::kContent && !any_content_) state_ = State::kReasoning;
      return;
    case ChatMarker::kThinkEnd:
      return;
    case ChatMarker::kCallsBegin:
      if (state_ == State::kContent) state_ = State::kBetweenCalls;
      return;
    case ChatMarker::kCallBegin:
      if (state_ == State::kArguments) end_call();
      header_.clear();
      state_ = State::kHeader;
      return;
    case ChatMarker::kSeparator:
      if (state_ != State::kHeader) return;
      if (syntax_.tools->before_arguments.empty()) {
        if (!name_in(header_).empty()) start_call(std::exchange(header_, {}));
        return;
      }
      header_.clear();
      state_ = State::kName;
      return;
    case ChatMarker::kCallEnd:
    case ChatMarker::kCallsEnd:
      if (state_ == State::kArguments) end_call();
      // A call without a name is shown as it is.
      if (state_ == State::kHeader || state_ == State::kName)
        on_content(std::exchange(header_, {}));
      state_ = marker == ChatMarker::kCallEnd ? State::kBetweenCalls : State::kContent;
      return;
  }
}

}  // namespace foresail
