// How many tokens to draft in each step: as many as give the most tokens per second, zero included.
// Costs are measured at start-up (StepCosts). What matters of them is how depths compare, so they
// are corrected by pairs: a few iterations one deeper or one less deep now and then, beside the
// usual ones around them; a machine that slows down for all depths alike changes nothing.
// Acceptance is learned all the time. A pure function of what it was told. Owner: the engine loop.
// Thread rule: one caller.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foresail {

// What iterations of `batch_size` requests take that verify `depth` drafts per request and propose
// as many, in seconds.
struct MeasuredBatch {
  int32_t batch_size = 0;
  std::vector<double> seconds;           // [depth], no draft accepted
  std::vector<double> accepted_seconds;  // [depth], more where all are: rows the drafter takes in
};

class StepCosts {
 public:
  explicit StepCosts(std::vector<MeasuredBatch> batches)  // their sizes ascend
      : batches_(std::move(batches)) {}

  // `accepted` drafts of each request on average. Between and beyond the measured batch sizes a
  // straight line.
  double at(int32_t batch_size, int32_t depth, double accepted) const;
  // Index of the smallest measured batch that is not smaller; the last one beyond.
  size_t nearest(int32_t batch_size) const;
  size_t measured_count() const { return batches_.size(); }
  int32_t max_depth() const { return static_cast<int32_t>(batches_[0].seconds.size()) - 1; }

 private:
  std::vector<MeasuredBatch> batches_;
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
  // At the pace of the start-up measurement.
  double expected_seconds(int32_t batch_size, int32_t depth) const;

 private:
  double measured_seconds(int32_t batch_size, int32_t depth) const {
    return costs_.at(batch_size, depth, expected_tokens(depth) - 1.0);
  }

  // A mean that starts as a guess, follows the first observations and then only slowly.
  struct RunningMean {
    double value = 0.0;
    int64_t count = 0;  // observations, those that the guess is worth included
    void observe(double sample, double least_weight);
  };

  StepCosts costs_;
  std::vector<RunningMean> acceptance_;  // [position] of a draft whose predecessors were accepted
  RunningMean pace_{.value = 1.0, .count = 1};  // what the usual depth takes over what is expected
  std::vector<std::vector<RunningMean>> correction_;  // [measured batch][depth] at an equal pace
  int32_t usual_ = -1;                                // the depth that pays most
  int32_t probe_depth_ = 0;
  int64_t probe_steps_left_ = 0;
  int64_t steps_until_probe_;
  int64_t probe_interval_;
  bool probe_deeper_ = true;  // the next one
};

}  // namespace foresail
