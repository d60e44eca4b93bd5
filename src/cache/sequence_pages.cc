#include "cache/sequence_pages.h"

#include "base/check.h"

namespace foresail {

SequencePages::SequencePages(KvCache& cache, SlotId slot, PrefixHit hit)
    : cache_(&cache), slot_(slot), lock_(std::move(hit.lock)) {
  for (PageId page : hit.pages) {
    cache_->table().set(slot_, static_cast<int32_t>(shared_.value), page);
    shared_ += Pages{1};
  }
}

SequencePages::~SequencePages() {
  if (cache_ != nullptr) cache_->table().clear(slot_);
}

SequencePages::SequencePages(SequencePages&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      slot_(other.slot_),
      lock_(std::move(other.lock_)),
      shared_(other.shared_),
      own_(std::move(other.own_)) {}

Pages SequencePages::missing_for(Tokens reach) const {
  return std::max(Pages{0}, pages_holding(reach, cache_->pool().page_size()) - size());
}

bool SequencePages::grow_to(Tokens reach) {
  const Pages missing = missing_for(reach);
  if (missing == Pages{0}) return true;
  FORESAIL_CHECK(size() + missing <= Pages{cache_->table().columns()},
                 "{} tokens need {} pages, the row has {} columns", reach.value,
                 (size() + missing).value, cache_->table().columns());
  std::vector<PageRef> pages = cache_->take(missing);
  if (pages.empty()) return false;
  for (PageRef& page : pages) {
    cache_->table().set(slot_, static_cast<int32_t>(size().value), page.id());
    own_.push_back(std::move(page));
  }
  return true;
}

void SequencePages::publish(std::span<const int32_t> tokens, Tokens computed, DeviceEpoch written) {
  const std::vector<PageId> canonical =
      cache_->tree().insert(lock_, tokens, computed, written, own_);
  const std::span<const int32_t> row = cache_->table().row(slot_);
  for (PageId page : canonical) {
    const int32_t column = static_cast<int32_t>(shared_.value);
    if (row[column] != page.value) cache_->table().set(slot_, column, page);
    shared_ += Pages{1};
  }
}

}  // namespace foresail
