// Requests whose bodies are large or whose grammars are new: however many come, one thread of the
// server is left for all else. Owner: HttpServer. Thread rule: any thread; never waits.
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
    void operator()(LongRequests* of) const {
      ++of->ended_;
      --of->running_;
    }
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
  // Asked at intervals, by one thread at a time: true once after some have ended, when none came
  // between two of these looks.
  bool have_gone_quiet() {
    const int64_t ended = ended_;
    const bool quiet = none() && ended == ended_at_look_ && ended != ended_when_quiet_;
    if (quiet) ended_when_quiet_ = ended;
    ended_at_look_ = ended;
    return quiet;
  }
  // After which it asks again: the more wait, the longer, so that asking costs little however many
  // they are.
  std::chrono::milliseconds delay() const { return std::chrono::milliseconds(5 + waiting_ / 16); }

 private:
  const int most_;
  std::atomic<int> running_{0}, waiting_{0};
  std::atomic<int64_t> ended_{0};
  int64_t ended_at_look_ = 0, ended_when_quiet_ = 0;
};

}  // namespace foresail
