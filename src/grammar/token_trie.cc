#include "grammar/token_trie.h"

#include <algorithm>

namespace foresail {

TokenTrie::TokenTrie(std::vector<std::string_view> bytes, std::vector<int32_t> control_ids,
                     int64_t vocab_size)
    : bytes_(std::move(bytes)), control_ids_(std::move(control_ids)) {
  bytes_.resize(vocab_size);
  is_control_.resize(vocab_size);
  std::erase_if(control_ids_, [&](int32_t id) { return id >= vocab_size; });
  for (const int32_t id : control_ids_) is_control_[id] = true;
  for (int32_t id = 0; id < vocab_size; ++id)
    if (!is_control_[id] && !bytes_[id].empty()) tokens_.push_back(id);
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    return bytes_[a] != bytes_[b] ? bytes_[a] < bytes_[b] : a < b;
  });

  std::vector<int32_t> open;  // nodes from the root to where we are
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      nodes_[open.back()].end = static_cast<int32_t>(nodes_.size());
  };
  std::string_view before;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view token = bytes_[tokens_[i]];
    const auto shared = static_cast<size_t>(
        std::mismatch(token.begin(), token.end(), before.begin(), before.end()).first -
        token.begin());
    close_to(shared);
    for (size_t depth = shared; depth < token.size(); ++depth) {
      open.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({.byte = static_cast<uint8_t>(token[depth]),
                        .depth = static_cast<int32_t>(depth) + 1,
                        .tokens_begin = static_cast<int32_t>(i),
                        .tokens_end = static_cast<int32_t>(i)});
    }
    nodes_[open.back()].tokens_end = static_cast<int32_t>(i) + 1;
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(token.size()));
    before = token;
  }
  close_to(0);
}

}  // namespace foresail
