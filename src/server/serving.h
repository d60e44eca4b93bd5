// What every request needs: the engine, the model's texts, counters and limits; and the requests
// that are under way. Owner: Server. Thread rule: see members.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/engine_thread.h"
#include "server/ignored_fields.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/served_model.h"

namespace foresail {

class Generation;

// Any thread.
class OpenRequests {
 public:
  explicit OpenRequests(int64_t limit) : limit_(limit) {}
  int64_t limit() const { return limit_; }  // streams

  // Room for so many more streams of the engine; false when that is over the limit.
  bool reserve(int64_t streams);
  void release(int64_t streams);
  int64_t streams() const { return streams_; }

  void add(std::shared_ptr<Generation> generation);
  void remove(const std::shared_ptr<Generation>& generation);
  // Of that name, or all when it is empty. How many there were.
  int abort(const std::string& name);
  bool empty() const;
  std::vector<std::string> names() const;

 private:
  int64_t limit_;
  std::atomic<int64_t> streams_{0};
  mutable std::mutex mutex_;
  std::unordered_set<std::shared_ptr<Generation>> open_;
};

struct Serving {
  EngineThread& engine;
  ServedModel& model;
  Metrics& metrics;
  Log& log;
  OpenRequests& open;
  std::chrono::milliseconds ping_interval;
  std::chrono::milliseconds queue_timeout, request_timeout;  // 0: none
  std::atomic<bool>& draining;
  IgnoredFields ignored_fields = {};
};

}  // namespace foresail
