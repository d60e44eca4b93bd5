// The physical pages of the KV cache: ids only, the numbers live on the device.
// One pool per engine; a PageRef owns its page, and the pool outlives every PageRef.
// Engine thread only.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace foresail {

// Number of a step. A page let go while step e may still use it is free once step e has completed.
using DeviceEpoch = int64_t;

class PagePool;

// The single handle of one page. Dropping it frees the page after the last planned step.
class PageRef {
 public:
  PageRef() = default;
  ~PageRef() { reset(); }
  PageRef(PageRef&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  PageRef& operator=(PageRef&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      id_ = other.id_;
    }
    return *this;
  }

  explicit operator bool() const { return pool_ != nullptr; }
  PageId id() const { return id_; }
  void reset();
  // For a page whose last user is known: free as soon as that step has completed.
  void reset_after(DeviceEpoch last_use);

 private:
  friend class PagePool;
  PageRef(PagePool* pool, PageId id) : pool_(pool), id_(id) {}

  PagePool* pool_ = nullptr;
  PageId id_;
};

class PagePool {
 public:
  // total counts the sink. Throws Error{kUsage} when no usable page is left.
  PagePool(Pages total, PageSize page_size);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // All or nothing: an empty vector when fewer than `count` pages are free.
  std::vector<PageRef> take(Pages count);

  // Steps are planned and completed in order.
  void note_planned(DeviceEpoch step);
  void note_completed(DeviceEpoch step);
  DeviceEpoch planned() const { return planned_; }
  DeviceEpoch completed() const { return completed_; }

  PageSize page_size() const { return page_size_; }
  Pages usable() const { return Pages{static_cast<int64_t>(state_.size()) - 1}; }
  Pages free() const { return Pages{static_cast<int64_t>(free_.size())}; }
  Pages in_flight() const { return Pages{static_cast<int64_t>(in_flight_.size())}; }
  bool is_free(PageId page) const { return state_[page.value] == State::kFree; }
  Pages held() const { return usable() - free() - in_flight(); }

  int64_t failures() const { return failures_; }
  // Tests: consulted once per page taken; true makes that allocation fail.
  void inject_failure(std::function<bool()> fails) { fails_ = std::move(fails); }

 private:
  friend class PageRef;
  enum class State : uint8_t { kSink, kFree, kHeld, kInFlight };
  struct Departing {
    DeviceEpoch last_use;
    PageId page;
  };
  void give_back(PageId page, DeviceEpoch last_use);

  PageSize page_size_;
  std::vector<State> state_;  // [pages]
  std::vector<PageId> free_;  // last in, first out: a given history always yields the same ids
  std::vector<Departing> in_flight_;
  DeviceEpoch planned_ = 0;
  DeviceEpoch completed_ = 0;
  std::function<bool()> fails_;
  int64_t failures_ = 0;
};

}  // namespace foresail
