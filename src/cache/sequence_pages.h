// The pages of one running request: a locked prefix in the tree, then pages of its own, in one row.
// Owned by the request's state; dropping it returns everything and clears the row.
// Engine thread only.
#pragma once

#include "cache/kv_cache.h"

namespace foresail {

class SequencePages {
 public:
  // Starts with the pages of the hit.
  SequencePages(KvCache& cache, SlotId slot, PrefixHit hit);
  ~SequencePages();
  SequencePages(SequencePages&& other) noexcept;
  SequencePages& operator=(SequencePages&&) = delete;

  // Makes positions below `reach` writable. All or nothing; false leaves the row as it was.
  [[nodiscard]] bool grow_to(Tokens reach);

  // Shares the full pages of finished work: positions below `computed`, written by step `written`
  // or earlier. Blocks that were cached already take the cached page and let go of their own.
  void publish(std::span<const int32_t> tokens, Tokens computed, DeviceEpoch written);

  SlotId slot() const { return slot_; }
  Pages size() const { return shared_ + owned(); }
  Pages owned() const { return Pages{static_cast<int64_t>(own_.size())}; }
  std::span<const PageRef> own_pages() const { return own_; }
  Pages missing_for(Tokens reach) const;

 private:
  KvCache* cache_;
  SlotId slot_;
  PrefixLock lock_;
  Pages shared_;              // pages under the lock: columns [0, shared_)
  std::vector<PageRef> own_;  // columns [shared_, shared_ + own_.size())
};

}  // namespace foresail
