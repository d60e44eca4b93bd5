#include "text/added_tokens.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/char_set.h"

namespace foresail {
namespace {

// \w of the engine that single_word is defined by: joiners and circled letters belong to words too.
const CharSet& word_chars() {
  static const CharSet set = CharSet::word()
                                 .united(CharSet::range(0x200C, 0x200D))
                                 .united(CharSet::range(0x24B6, 0x24E9))
                                 .united(CharSet::range(0x1F130, 0x1F149))
                                 .united(CharSet::range(0x1F150, 0x1F169))
                                 .united(CharSet::range(0x1F170, 0x1F189));
  return set;
}

const CharSet& space_chars() {
  static const CharSet set = CharSet::white_space();
  return set;
}

size_t previous_char(std::string_view text, size_t position) {
  do --position;
  while (position > 0 && (text[position] & 0xC0) == 0x80);
  return position;
}

bool starts_in(const CharSet& set, std::string_view text, size_t position) {
  return position < text.size() && set.contains(decode_utf8(text, position).code_point);
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && starts_in(word_chars(), text, previous_char(text, begin));
  return !word_before && !starts_in(word_chars(), text, end);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) : nodes_(1) {
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    uint32_t node = 0;
    for (const char byte : token.content) {
      const auto by_byte = [](const auto& child, char value) { return child.first < value; };
      auto& children = nodes_[node].children;
      const auto place = std::lower_bound(children.begin(), children.end(), byte, by_byte);
      if (place != children.end() && place->first == byte) {
        node = place->second;
        continue;
      }
      const auto child = static_cast<uint32_t>(nodes_.size());
      children.insert(place, {byte, child});
      nodes_.emplace_back();
      node = child;
    }
    nodes_[node].token = static_cast<int32_t>(tokens_.size());
    can_start_[static_cast<unsigned char>(token.content[0])] = true;
    tokens_.push_back(token);
  }
}

const AddedToken* AddedTokenMatcher::longest(std::string_view text, size_t begin) const {
  const AddedToken* found = nullptr;
  uint32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto& children = nodes_[node].children;
    const auto by_byte = [](const auto& child, char value) { return child.first < value; };
    const auto place = std::lower_bound(children.begin(), children.end(), text[i], by_byte);
    if (place == children.end() || place->first != text[i]) break;
    node = place->second;
    if (nodes_[node].token >= 0) found = &tokens_[nodes_[node].token];
  }
  return found;
}

void AddedTokenMatcher::split(std::string_view text, const OnText& on_text,
                              const OnToken& on_token) const {
  size_t text_begin = 0;  // what lies before it has been handed out
  for (size_t position = 0; position < text.size();) {
    const bool possible = can_start_[static_cast<unsigned char>(text[position])];
    const AddedToken* token = possible ? longest(text, position) : nullptr;
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position, end = position + token->content.size();
    position = end;  // a match that is refused below still hides the matches inside it
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    if (token->lstrip)
      while (begin > text_begin && starts_in(space_chars(), text, previous_char(text, begin)))
        begin = previous_char(text, begin);
    if (token->rstrip)
      while (starts_in(space_chars(), text, end)) end += decode_utf8(text, end).length_bytes;
    if (begin > text_begin) on_text(text.substr(text_begin, begin - text_begin));
    on_token(token->id);
    text_begin = position = end;
  }
  if (text_begin < text.size()) on_text(text.substr(text_begin));
}

}  // namespace foresail
