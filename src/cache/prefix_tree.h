// The prefix cache: a tree of page-sized token blocks, one root per namespace (cache_salt).
// Owned by the KvCache; each node owns its page, a PrefixLock keeps its path from eviction.
// Engine thread only.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/page_pool.h"

namespace foresail {

// What a block is known by. Drafter KV at position p depends on token p + 1, so with a drafter that
// writes KV a block of P positions is P pairs: its tokens and the one that follows.
enum class PrefixKeys { kOff, kTokens, kPairs };

class PrefixTree;

class PrefixLock {
 public:
  PrefixLock() = default;
  ~PrefixLock() { reset(); }
  PrefixLock(PrefixLock&& other) noexcept
      : tree_(std::exchange(other.tree_, nullptr)), node_(other.node_) {}
  PrefixLock& operator=(PrefixLock&& other) noexcept {
    reset();
    tree_ = std::exchange(other.tree_, nullptr);
    node_ = other.node_;
    return *this;
  }
  void reset();

 private:
  friend class PrefixTree;
  PrefixLock(PrefixTree* tree, int32_t node) : tree_(tree), node_(node) {}

  PrefixTree* tree_ = nullptr;
  int32_t node_ = -1;
};

struct PrefixHit {
  Tokens target_hit;  // positions whose target KV is cached
  Tokens
      draft_hit;  // positions whose drafter KV is cached too; equal to target_hit without a drafter
  PrefixLock lock;
  std::vector<PageId> pages;  // of reuse(), in order

  // Target and drafter share page ids, so a page is reused for both or for none.
  Tokens reuse() const { return std::min(target_hit, draft_hit); }
};

class PrefixTree {
 public:
  PrefixTree(PagePool& pool, PrefixKeys keys) : pool_(pool), keys_(keys) {}
  ~PrefixTree() { evict(Pages{INT64_MAX}); }
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest cached prefix of `tokens` that leaves the last token to compute, locked.
  PrefixHit match(std::string_view cache_salt, std::span<const int32_t> tokens);

  // Takes over the full pages of work that step `written` has finished. `own` starts at the first
  // page after the lock; its pages that go into the tree are removed from it. Returns the pages the
  // caller must use from now on: where a block was cached already, the cached page instead of its
  // own.
  std::vector<PageId> insert(PrefixLock& lock, std::span<const int32_t> tokens, Tokens computed,
                             DeviceEpoch written, std::vector<PageRef>& own);

  // Lets go of up to `count` pages, least recently used first, never a locked one.
  Pages evict(Pages count);

  PrefixKeys keys() const { return keys_; }
  Pages size() const { return size_; }
  Pages evictable() const { return evictable_; }
  // Calls visit(page, locked) for every cached page, in no promised order.
  template <typename Visit>
  void for_each_page(Visit&& visit) const {
    for (const Node& node : nodes_)
      if (node.live && node.page) visit(node.page.id(), node.pins > 0);
  }
  // Aborts unless counts, pins and eviction order agree with the nodes.
  void check() const;

 private:
  friend class PrefixLock;
  struct Node {
    int32_t parent = -1;  // -1: a root
    int32_t depth = 0;    // pages from the root to here
    int32_t children = 0;
    int32_t pins = 0;  // locks here + pinned children
    int64_t last_use = 0;
    DeviceEpoch idle_since = 0;  // no step after this one reads the page
    PageRef page;
    std::vector<int32_t> key;  // [page_size], one more with pairs
    std::string cache_salt;    // roots
    bool live = false;
  };
  int32_t block_tokens() const { return pool_.page_size().tokens(); }
  int32_t key_tokens() const { return block_tokens() + (keys_ == PrefixKeys::kPairs ? 1 : 0); }
  bool is_evictable(const Node& node) const { return node.parent >= 0 && node.pins == 0; }
  // The child with this key, -1 when there is none.
  int32_t find(int32_t parent, std::span<const int32_t> key) const;
  int32_t root_of(std::string_view cache_salt);
  int32_t new_node();
  int32_t add_child(int32_t parent, std::span<const int32_t> key, PageRef page);
  void drop_root_if_unused(int32_t node);
  void pin(int32_t node);
  void unpin(int32_t node);

  PagePool& pool_;
  PrefixKeys keys_;
  std::vector<Node> nodes_;
  std::vector<int32_t> spare_;
  std::map<std::string, int32_t, std::less<>> roots_;
  std::unordered_multimap<uint64_t, int32_t> by_key_;  // hash(parent, key) -> node
  std::unordered_map<uint64_t, int32_t>
      by_tokens_;                                 // hash(parent, page tokens) -> nodes; pairs only
  std::set<std::pair<int64_t, int32_t>> leaves_;  // (last_use, node) of unpinned leaves
  int64_t clock_ = 0;
  Pages size_;
  Pages evictable_;
};

}  // namespace foresail
