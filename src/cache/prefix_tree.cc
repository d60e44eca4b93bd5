#include "cache/prefix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace foresail {
namespace {

uint64_t hash(int32_t parent, std::span<const int32_t> tokens) {
  uint64_t h = 0x9e3779b97f4a7c15ull ^ static_cast<uint32_t>(parent);
  for (int32_t token : tokens) {
    h = (h ^ static_cast<uint32_t>(token)) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace

void PrefixLock::reset() {
  if (tree_ != nullptr) std::exchange(tree_, nullptr)->unpin(node_);
}

int32_t PrefixTree::find(int32_t parent, std::span<const int32_t> key) const {
  const auto [begin, end] = by_key_.equal_range(hash(parent, key));
  const auto found = std::find_if(begin, end, [&](const auto& entry) {
    const Node& node = nodes_[entry.second];
    return node.parent == parent && std::ranges::equal(node.key, key);
  });
  return found == end ? -1 : found->second;
}

PrefixHit PrefixTree::match(std::string_view cache_salt, std::span<const int32_t> tokens) {
  PrefixHit hit;
  if (keys_ == PrefixKeys::kOff) return hit;
  int32_t node = root_of(cache_salt);
  const int64_t length = static_cast<int64_t>(tokens.size());
  // At most length - 1, so that the pass has something to compute; a pair key fits in that too.
  const Pages limit = full_pages(Tokens{length - 1}, pool_.page_size());
  bool target_only = false;
  while (Pages{nodes_[node].depth} < limit) {
    const int64_t start = int64_t{nodes_[node].depth} * block_tokens();
    const int32_t child = find(node, tokens.subspan(start, key_tokens()));
    if (child < 0) {
      // The same page with another successor: good for the target, not for the drafter.
      target_only = by_tokens_.contains(hash(node, tokens.subspan(start, block_tokens())));
      break;
    }
    node = child;
    hit.pages.push_back(nodes_[node].page.id());
  }
  hit.draft_hit = Tokens{int64_t{nodes_[node].depth} * block_tokens()};
  hit.target_hit = hit.draft_hit + Tokens{target_only ? block_tokens() : 0};
  pin(node);
  hit.lock = PrefixLock(this, node);
  return hit;
}

std::vector<PageId> PrefixTree::insert(PrefixLock& lock, std::span<const int32_t> tokens,
                                       Tokens computed, DeviceEpoch written,
                                       std::vector<PageRef>& own) {
  std::vector<PageId> canonical;
  if (keys_ == PrefixKeys::kOff) return canonical;
  FORESAIL_CHECK(lock.tree_ == this, "insert without a lock");
  FORESAIL_CHECK(written <= pool_.completed(), "step {} is not complete: {} is", written,
                 pool_.completed());
  FORESAIL_CHECK(computed.value <= static_cast<int64_t>(tokens.size()), "{} computed of {} tokens",
                 computed.value, tokens.size());
  const int32_t extra = key_tokens() - block_tokens();
  const Tokens keyed{
      std::min<int64_t>(computed.value, static_cast<int64_t>(tokens.size()) - extra)};
  const int64_t pages = full_pages(std::max(keyed, Tokens{0}), pool_.page_size()).value;
  size_t taken = 0;
  for (int64_t block = nodes_[lock.node_].depth; block < pages; ++block, ++taken) {
    FORESAIL_CHECK(taken < own.size(), "page {} of {} computed was never owned", block, pages);
    const std::span<const int32_t> key = tokens.subspan(block * block_tokens(), key_tokens());
    int32_t child = find(lock.node_, key);
    if (child < 0) child = add_child(lock.node_, key, std::move(own[taken]));
    canonical.push_back(nodes_[child].page.id());
    pin(child);
    unpin(std::exchange(lock.node_, child));
  }
  own.erase(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(taken));
  return canonical;
}

Pages PrefixTree::evict(Pages count) {
  Pages evicted;
  while (evicted < count && !leaves_.empty()) {
    const int32_t leaf = leaves_.begin()->second;
    leaves_.erase(leaves_.begin());
    Node& node = nodes_[leaf];
    const auto [begin, end] = by_key_.equal_range(hash(node.parent, node.key));
    by_key_.erase(
        std::find_if(begin, end, [&](const auto& entry) { return entry.second == leaf; }));
    if (keys_ == PrefixKeys::kPairs) {
      const auto entry =
          by_tokens_.find(hash(node.parent, std::span(node.key).first(block_tokens())));
      if (--entry->second == 0) by_tokens_.erase(entry);
    }
    node.page.reset_after(node.idle_since);
    const int32_t parent_index = node.parent;
    node = Node{};
    spare_.push_back(leaf);
    Node& parent = nodes_[parent_index];
    if (--parent.children == 0 && is_evictable(parent)) {
      leaves_.insert({parent.last_use, parent_index});
    }
    drop_root_if_unused(parent_index);
    evicted += Pages{1};
  }
  size_ -= evicted;
  evictable_ -= evicted;
  return evicted;
}

int32_t PrefixTree::root_of(std::string_view cache_salt) {
  if (const auto it = roots_.find(cache_salt); it != roots_.end()) return it->second;
  const int32_t root = new_node();
  nodes_[root].cache_salt = cache_salt;
  roots_.emplace(cache_salt, root);
  return root;
}

int32_t PrefixTree::new_node() {
  if (spare_.empty()) {
    spare_.push_back(static_cast<int32_t>(nodes_.size()));
    nodes_.emplace_back();
  }
  const int32_t node = spare_.back();
  spare_.pop_back();
  nodes_[node].live = true;
  return node;
}

int32_t PrefixTree::add_child(int32_t parent, std::span<const int32_t> key, PageRef page) {
  FORESAIL_CHECK(nodes_[parent].pins > 0, "node {} grows without a lock", parent);
  const int32_t child = new_node();
  Node& node = nodes_[child];
  node.parent = parent;
  node.depth = nodes_[parent].depth + 1;
  node.page = std::move(page);
  node.key.assign(key.begin(), key.end());
  node.last_use = ++clock_;
  node.idle_since = pool_.planned();
  ++nodes_[parent].children;
  by_key_.emplace(hash(parent, key), child);
  if (keys_ == PrefixKeys::kPairs) ++by_tokens_[hash(parent, key.first(block_tokens()))];
  leaves_.insert({node.last_use, child});
  size_ += Pages{1};
  evictable_ += Pages{1};
  return child;
}

void PrefixTree::drop_root_if_unused(int32_t root) {
  Node& node = nodes_[root];
  if (node.parent >= 0 || node.pins > 0 || node.children > 0) return;
  roots_.erase(node.cache_salt);
  node = Node{};
  spare_.push_back(root);
}

void PrefixTree::pin(int32_t index) {
  for (; index >= 0; index = nodes_[index].parent) {
    Node& node = nodes_[index];
    if (node.pins++ > 0) return;
    if (node.parent < 0) return;
    evictable_ -= Pages{1};
    if (node.children == 0) leaves_.erase({node.last_use, index});
  }
}

void PrefixTree::unpin(int32_t index) {
  const int64_t now = ++clock_;
  while (index >= 0) {
    Node& node = nodes_[index];
    FORESAIL_CHECK(node.pins > 0, "node {} is not locked", index);
    if (--node.pins > 0) return;
    const int32_t parent = node.parent;
    if (parent < 0) return drop_root_if_unused(index);
    node.last_use = now;
    node.idle_since = pool_.planned();
    evictable_ += Pages{1};
    if (node.children == 0) leaves_.insert({now, index});
    index = parent;
  }
}

void PrefixTree::check() const {
  std::vector<int32_t> children(nodes_.size()), pinned_children(nodes_.size());
  Pages size, evictable;
  size_t leaves = 0;
  for (const Node& node : nodes_) {
    if (!node.live || node.parent < 0) continue;
    FORESAIL_CHECK(nodes_[node.parent].live && node.page, "a node without parent or page");
    ++children[node.parent];
    if (node.pins > 0) ++pinned_children[node.parent];
    size += Pages{1};
    if (node.pins == 0) evictable += Pages{1};
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.live) continue;
    FORESAIL_CHECK(node.children == children[i] && node.pins >= pinned_children[i],
                   "node {}: {} children of {}, {} pins for {}", i, node.children, children[i],
                   node.pins, pinned_children[i]);
    const bool leaf = is_evictable(node) && node.children == 0;
    leaves += leaf;
    FORESAIL_CHECK(leaf == leaves_.contains({node.last_use, static_cast<int32_t>(i)}),
                   "node {} and the eviction order disagree", i);
  }
  FORESAIL_CHECK(size == size_ && evictable == evictable_ && leaves == leaves_.size() &&
                     by_key_.size() == static_cast<size_t>(size.value),
                 "{} nodes of {}, {} evictable of {}", size_.value, size.value, evictable_.value,
                 evictable.value);
}

}  // namespace foresail
