// Requests whose bodies are large or whose grammars are new: however many come, one thread of the
// server is left for all else. Owner: HttpServer. Thread rule: any thread; never waits.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

namespace foresail {

class LongRequests {
 public:
  explicit LongRequests(int threads) : most_(std::max(1, threads - 1)) {}

  struct Leave {
    void operator()(LongRequests* of) const { --of->running_; }
  };
  using Turn = std::unique_ptr<LongRequests, Leave>;
  // Null: as many run as may. One that has not waited does not pass those that do, or clients that
  // ask again at once would take every turn from who looks for one now and then.
  Turn take_turn(bool has_waited) {
    if (!has_waited && waiting_ > 0) return nullptr;
    if (++running_ <= most_) return Turn(this);
    --running_;
    return nullptr;
  }

  struct GoOn {
    void operator()(LongRequests* of) const { --of->waiting_; }
  };
  using Place = std::unique_ptr<LongRequests, GoOn>;
  // Of one without a turn, as long as it waits for one.
  Place take_place() {
    ++waiting_;
    return Place(this);
  }
  bool none() const { return running_ == 0 && waiting_ == 0; }
  // After which it asks again: the more wait, the longer, so that asking costs little however many
  // they are.
  std::chrono::milliseconds delay() const { return std::chrono::milliseconds(5 + waiting_ / 16); }

 private:
  const int most_;
  std::atomic<int> running_{0}, waiting_{0};
};

}  // namespace foresail
