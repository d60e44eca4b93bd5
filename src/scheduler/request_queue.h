// The requests that wait for a slot, new and retracted alike, in the order they will run.
// Owned by the Scheduler; holds no request, only their order.
// Engine thread only.
#pragma once

#include <set>

#include "scheduler/sequence.h"

namespace foresail {

class RequestQueue {
 public:
  void push(Sequence* request) { queue_.insert(request); }
  // False when it was not waiting.
  bool remove(Sequence* request) { return queue_.erase(request) > 0; }
  Sequence* front() const { return *queue_.begin(); }
  bool empty() const { return queue_.empty(); }
  int64_t size() const { return static_cast<int64_t>(queue_.size()); }

 private:
  std::set<Sequence*, RunsBefore> queue_;
};

}  // namespace foresail
