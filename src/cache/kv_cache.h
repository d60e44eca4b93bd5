// The cache as one object: capacity, pool, prefix tree and page table of one engine.
// Owned by the scheduler; hands out page ids, the tensors behind them live elsewhere.
// Engine thread only.
#pragma once

#include "cache/capacity.h"
#include "cache/page_pool.h"
#include "cache/page_table.h"
#include "cache/prefix_tree.h"

namespace foresail {

struct KvCacheConfig {
  CapacityConfig capacity;
  int32_t slots = 64;  // requests running at once
  PrefixKeys prefix_keys = PrefixKeys::kTokens;
};

class KvCache {
 public:
  explicit KvCache(const KvCacheConfig& config)
      : capacity_(config.capacity),
        pool_(config.capacity.pool_pages, config.capacity.page_size),
        tree_(pool_, config.prefix_keys),
        table_(config.slots, capacity_.table_columns()) {}

  const Capacity& capacity() const { return capacity_; }
  PagePool& pool() { return pool_; }
  const PagePool& pool() const { return pool_; }
  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  PageTable& table() { return table_; }
  const PageTable& table() const { return table_; }

  // Pages to be had without touching a running request, those of a step still in flight included.
  Pages reclaimable() const { return pool_.free() + tree_.evictable() + pool_.in_flight(); }

  // All or nothing. Evicts what is missing; a page evicted while a step may read it comes later.
  std::vector<PageRef> take(Pages count) {
    const Pages coming = pool_.free() + pool_.in_flight();
    if (count > coming) tree_.evict(count - coming);
    return pool_.take(count);
  }

 private:
  Capacity capacity_;
  PagePool pool_;
  PrefixTree tree_;
  PageTable table_;
};

}  // namespace foresail
