// How many tokens to draft in each step: as many as give the most tokens per second, zero included.
// Costs are measured at start-up (StepCosts) and corrected by what iterations take, acceptance is
// learned all the time. A pure function of what it was told. Owner: the engine loop. Thread rule:
// one caller.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foresail {

// Seconds of one iteration that verifies `depth` drafts per request and proposes as many.
class StepCosts {
 public:
  // seconds[i][depth] for batch_sizes[i] requests; batch sizes ascend.
  StepCosts(std::vector<int32_t> batch_sizes, std::vector<std::vector<double>> seconds)
      : batch_sizes_(std::move(batch_sizes)), seconds_(std::move(seconds)) {}

  // Between and beyond the measured batch sizes a straight line.
  double at(int32_t batch_size, int32_t depth) const;
  int32_t max_depth() const { return static_cast<int32_t>(seconds_[0].size()) - 1; }

 private:
  std::vector<int32_t> batch_sizes_;
  std::vector<std::vector<double>> seconds_;
};

class AdaptiveDepth {
 public:
  explicit AdaptiveDepth(StepCosts costs);

  // For the next iteration of `batch_size` requests.
  int32_t choose(int32_t batch_size);
  // A request verified `drafted` drafts and accepted the first `accepted`.
  void observe(int drafted, int accepted);
  // An iteration of `batch_size` requests that verified and proposed `depth` drafts each, and
  // nothing else, took so long.
  void observe_seconds(int32_t batch_size, int32_t depth, double seconds);

  // Mean tokens of an iteration at this depth, the target's own included.
  double expected_tokens(int32_t depth) const;
  double expected_seconds(int32_t batch_size, int32_t depth) const {
    return correction_[depth].value * costs_.at(batch_size, depth);
  }

 private:
  // A mean that starts as a guess, follows the first observations and then only slowly.
  struct RunningMean {
    double value = 0.0;
    int64_t count = 0;
    void observe(double sample, double least_weight);
  };

  StepCosts costs_;
  std::vector<RunningMean> acceptance_;  // [position] of a draft whose predecessors were accepted
  std::vector<RunningMean> correction_;  // [depth] what iterations take over what was measured
  int64_t steps_until_probe_;
  int64_t probe_interval_;
  int32_t last_best_ = -1;
};

}  // namespace foresail
