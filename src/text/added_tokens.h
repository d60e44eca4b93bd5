// Tokens that are cut out of text before anything else: control tokens, role tokens and the like.
// Immutable after construction; any thread may match with it at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foresail {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // decoding may leave it out
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // … and after it
  bool single_word = false;  // only between characters that are no part of a word
  bool normalized = false;   // matched in normalized text
};

class AddedTokenMatcher {
 public:
  using OnText = std::function<void(std::string_view)>;
  using OnToken = std::function<void(int32_t)>;

  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);
  bool empty() const { return tokens_.empty(); }
  // Leftmost longest matches, and the text between them, in order.
  void split(std::string_view text, const OnText& on_text, const OnToken& on_token) const;

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;  // sorted by byte
    int32_t token = -1;                               // index into tokens_
  };
  // The longest token that starts at `begin`, or nothing.
  const AddedToken* longest(std::string_view text, size_t begin) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie over bytes; 0 is the root
  bool can_start_[256] = {};
};

}  // namespace foresail
