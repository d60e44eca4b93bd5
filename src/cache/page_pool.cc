#include "cache/page_pool.h"

#include "base/check.h"

namespace foresail {

void PageRef::reset() {
  if (pool_ != nullptr) reset_after(pool_->planned());
}

void PageRef::reset_after(DeviceEpoch last_use) {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->give_back(id_, last_use);
}

PagePool::PagePool(Pages total, PageSize page_size) : page_size_(page_size) {
  if (total < Pages{2} || total > Pages{INT32_MAX}) {
    throw_error(ErrorCode::kUsage, "a KV pool of {} pages: need at least one page besides the sink",
                total.value);
  }
  state_.assign(total.value, State::kFree);
  state_[0] = State::kSink;
  free_.reserve(total.value - 1);
  for (int32_t page = static_cast<int32_t>(total.value) - 1; page > 0; --page) {
    free_.push_back(PageId{page});
  }
}

PagePool::~PagePool() {
  FORESAIL_CHECK(held() == Pages{0}, "{} pages still have an owner", held().value);
}

std::vector<PageRef> PagePool::take(Pages count) {
  std::vector<PageRef> pages;
  if (count > free()) return pages;
  pages.reserve(count.value);
  for (int64_t i = 0; i < count.value; ++i) {
    if (fails_ && fails_()) {
      ++failures_;
      // Never seen by a device, so free at once, and in the order that undoes the taking.
      while (!pages.empty()) {
        pages.back().reset_after(completed_);
        pages.pop_back();
      }
      return pages;
    }
    const PageId page = free_.back();
    free_.pop_back();
    state_[page.value] = State::kHeld;
    pages.push_back(PageRef(this, page));
  }
  return pages;
}

void PagePool::note_planned(DeviceEpoch step) {
  FORESAIL_CHECK(step > planned_, "step {} planned after {}", step, planned_);
  planned_ = step;
}

void PagePool::note_completed(DeviceEpoch step) {
  FORESAIL_CHECK(step > completed_ && step <= planned_, "step {} completed after {}, planned {}",
                 step, completed_, planned_);
  completed_ = step;
  std::erase_if(in_flight_, [&](const Departing& departing) {
    if (departing.last_use > completed_) return false;
    state_[departing.page.value] = State::kFree;
    free_.push_back(departing.page);
    return true;
  });
}

void PagePool::give_back(PageId page, DeviceEpoch last_use) {
  FORESAIL_CHECK(state_[page.value] == State::kHeld, "page {} has no owner", page.value);
  if (last_use <= completed_) {
    state_[page.value] = State::kFree;
    free_.push_back(page);
  } else {
    state_[page.value] = State::kInFlight;
    in_flight_.push_back({last_use, page});
  }
}

}  // namespace foresail
