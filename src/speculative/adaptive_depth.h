// How many tokens to draft in each step: as many as give the most tokens per second, zero included.
// Costs are measured at start-up (StepCosts). What matters of them is how depths compare, and that
// is what is corrected, for each pair of neighbours: a few iterations one deeper or one less deep
// now and then, or farther where that may pay although the neighbour does not, beside the usual
// ones just before and after them. A longer context, or a machine that slows down, hits both alike
// and changes nothing.
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
  // More at depth 0 on average: its rows wait for the drafter until a page of them is complete, so
  // that most iterations do not show it.
  double catch_up_seconds = 0.0;
};

class StepCosts {
 public:
  explicit StepCosts(std::vector<MeasuredBatch> batches)  // their sizes ascend
      : batches_(std::move(batches)) {}

  // `accepted` drafts of each request on average. Between and beyond the measured batch sizes a
  // straight line.
  double at(int32_t batch_size, int32_t depth, double accepted) const;
  double catch_up(int32_t batch_size) const;  // of depth 0
  // Index of the smallest measured batch that is not smaller; the last one beyond.
  size_t nearest(int32_t batch_size) const;
  size_t measured_count() const { return batches_.size(); }
  int32_t max_depth() const { return static_cast<int32_t>(batches_[0].seconds.size()) - 1; }

 private:
  template <typename Seconds>
  double on_line(int32_t batch_size, const Seconds& seconds_of) const;

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
  // At the pace of the start-up measurement of depth 0.
  double expected_seconds(int32_t batch_size, int32_t depth) const;

 private:
  // A mean that starts as a guess, follows the first observations and then only slowly.
  struct RunningMean {
    double value = 0.0;
    int64_t count = 0;  // observations, those that the guess is worth included
    void observe(double sample, double least_weight);
  };

  // Seconds of iterations of one batch size: at the usual depth, at its neighbour, and at the usual
  // depth again.
  struct Comparison {
    int32_t batch_size = 0;
    std::vector<double> before, probe, after;
    void clear() { *this = {}; }
  };

  double measured_seconds(int32_t batch_size, int32_t depth) const {
    return costs_.at(batch_size, depth, expected_tokens(depth) - 1.0);
  }
  // Iterations without the catching up of depth 0, as most are.
  double corrected_seconds(int32_t batch_size, int32_t depth) const;
  void learn_from_comparison();
  int32_t next_probe(int32_t batch_size);
  // The deeper one that would pay most if all drafts beyond the next were accepted like it; the
  // next one where none would pay. What is known of drafts that are never made may be of another
  // text.
  int32_t hopeful_depth(int32_t batch_size) const;

  StepCosts costs_;
  std::vector<RunningMean> acceptance_;  // [position] of a draft whose predecessors were accepted
  // [measured batch][depth] log of how much more depth + 1 takes over depth than was measured.
  std::vector<std::vector<RunningMean>> step_correction_;
  Comparison comparison_;
  int32_t usual_ = -1;  // the depth that pays most
  int32_t probe_depth_ = 0;
  int64_t probe_steps_left_ = 0;
  int64_t steps_until_probe_;
  int64_t probe_interval_;
  bool probe_deeper_ = true;  // the next one
  bool far_probe_ = true;     // the last deeper one looked beyond the neighbour
};

}  // namespace foresail
