// The requests that wait for a slot, new and retracted alike, in the order they will run.
// Owned by the Scheduler; holds no request, only their order.
// Engine thread only.
#pragma once

#include <set>

#include "scheduler/request.h"

namespace foresail {

class RequestQueue {
 public:
  void push(Request* request) { queue_.insert(request); }
  // False when it was not waiting.
  bool remove(Request* request) { return queue_.erase(request) > 0; }
  Request* front() const { return *queue_.begin(); }
  bool empty() const { return queue_.empty(); }
  int64_t size() const { return static_cast<int64_t>(queue_.size()); }

 private:
  std::set<Request*, RunsBefore> queue_;
};

}  // namespace foresail
