// Requests whose bodies are large: however many come, one thread of the server is left for all
// else. Owner: HttpServer. Thread rule: any thread; never waits.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace foresail {

class LongRequests {
 public:
  explicit LongRequests(int threads) : most_(std::max(1, threads - 1)) {}

  struct Leave {
    void operator()(LongRequests* of) const { --of->running_; }
  };
  using Turn = std::unique_ptr<LongRequests, Leave>;
  // Null: as many run as may.
  Turn take_turn() {
    if (++running_ <= most_) return Turn(this);
    --running_;
    return nullptr;
  }

  // After which one without a turn asks again: the more wait, the longer, so that asking costs
  // little however many they are.
  static std::chrono::milliseconds delay(uint64_t waiting_bytes) {
    return std::chrono::milliseconds(5 + (waiting_bytes >> 20));
  }

 private:
  const int most_;
  std::atomic<int> running_{0};
};

}  // namespace foresail
