// The tokens of a model in the order of their bytes, so that those which share a beginning are
// tried together. Built once per model; any thread may read it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace foresail {

class TokenTrie {
 public:
  // bytes[id] stays where it is; empty: the token cannot be written as text. A control token's
  // bytes do not matter. vocab_size may be larger: ids without a name.
  TokenTrie(std::vector<std::string_view> bytes, std::vector<int32_t> control_ids,
            int64_t vocab_size);

  // In preorder: the children of a node follow it, up to its end.
  struct Node {
    uint8_t byte = 0;
    int32_t depth = 0;                         // bytes from the root to here, at least 1
    int32_t end = 0;                           // the next node that is not below this one
    int32_t tokens_begin = 0, tokens_end = 0;  // those that end here
  };
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> tokens_at(const Node& node) const {
    return std::span(tokens_).subspan(node.tokens_begin, node.tokens_end - node.tokens_begin);
  }
  int32_t max_depth() const { return max_depth_; }
  std::span<const int32_t> control_ids() const { return control_ids_; }
  bool is_control(int32_t id) const { return is_control_[id]; }
  std::string_view bytes(int32_t id) const { return bytes_[id]; }
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::vector<std::string_view> bytes_;  // [vocab_size]
  std::vector<bool> is_control_;
  std::vector<int32_t> control_ids_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // text tokens by their bytes
  int32_t max_depth_ = 0;
};

}  // namespace foresail
