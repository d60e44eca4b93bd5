#include "speculative/adaptive_depth.h"

#include <algorithm>
#include <cmath>

namespace foresail {
namespace {

// Before anything was seen: optimistic, so that depth is tried before it is given up.
constexpr double kPrior = 0.8;
constexpr int64_t kPriorCount = 3;
// In the long run: the mean of about the last 200 drafts of a position.
constexpr double kAcceptanceWeight = 1.0 / 200;
// The pace changes with the context and the machine within a few iterations. What depths cost
// relative to each other hardly does, and a probe tells it to some 10 %, so many of them count and
// the start-up measurement as one of the first. One interrupted iteration must not count for much.
constexpr double kPaceWeight = 1.0 / 4;
constexpr int64_t kCostCount = 6;
constexpr double kCorrectionWeight = 1.0 / 32;
constexpr double kOutlier = 1.25;
// A probe is a few iterations at a neighbouring depth: the first of them still verifies the usual
// number of drafts. The interval doubles while the usual depth stays. Where the neighbour pays so
// much less that no error of its costs explains it, one iteration tells of its acceptance.
constexpr int64_t kProbeSteps = 4;
constexpr double kNearRate = 0.6;
constexpr int64_t kFirstProbe = 32;
constexpr int64_t kLastProbe = 256;

double without_outlier(double sample, double expected) {
  return std::clamp(sample, expected / kOutlier, expected * kOutlier);
}

}  // namespace

void AdaptiveDepth::RunningMean::observe(double sample, double least_weight) {
  ++count;
  value += std::max(least_weight, 1.0 / static_cast<double>(count)) * (sample - value);
}

size_t StepCosts::nearest(int32_t batch_size) const {
  size_t index = 0;
  while (index + 1 < batches_.size() && batches_[index].batch_size < batch_size) ++index;
  return index;
}

double StepCosts::at(int32_t batch_size, int32_t depth, double accepted) const {
  const auto seconds = [&](const MeasuredBatch& batch) {
    return batch.seconds[depth] +
           (depth == 0 ? 0.0 : accepted / depth * batch.accepted_seconds[depth]);
  };
  if (batches_.size() == 1)
    return seconds(batches_[0]) * static_cast<double>(batch_size) / batches_[0].batch_size;
  const size_t upper = std::max<size_t>(1, nearest(batch_size));
  const MeasuredBatch& low = batches_[upper - 1];
  const MeasuredBatch& high = batches_[upper];
  const double share =
      static_cast<double>(batch_size - low.batch_size) / (high.batch_size - low.batch_size);
  return std::lerp(seconds(low), seconds(high), share);
}

AdaptiveDepth::AdaptiveDepth(StepCosts costs)
    : costs_(std::move(costs)),
      acceptance_(costs_.max_depth(), {.value = kPrior, .count = kPriorCount}),
      correction_(
          costs_.measured_count(),
          std::vector<RunningMean>(costs_.max_depth() + 1, {.value = 1.0, .count = kCostCount})),
      steps_until_probe_(kFirstProbe),
      probe_interval_(kFirstProbe) {}

double AdaptiveDepth::expected_seconds(int32_t batch_size, int32_t depth) const {
  return correction_[costs_.nearest(batch_size)][depth].value * measured_seconds(batch_size, depth);
}

double AdaptiveDepth::expected_tokens(int32_t depth) const {
  double tokens = 1.0, chain = 1.0;
  for (int32_t position = 0; position < depth; ++position)
    tokens += chain *= acceptance_[position].value;
  return tokens;
}

int32_t AdaptiveDepth::choose(int32_t batch_size) {
  if (batch_size == 0) return costs_.max_depth();
  const auto rate = [&](int32_t depth) {
    return expected_tokens(depth) / expected_seconds(batch_size, depth);
  };
  int32_t best = 0;
  for (int32_t depth = 1; depth <= costs_.max_depth(); ++depth)
    if (rate(depth) > rate(best)) best = depth;
  if (best != usual_) {
    usual_ = best;
    steps_until_probe_ = probe_interval_ = kFirstProbe;
    probe_steps_left_ = 0;
  }
  if (probe_steps_left_ > 0) {
    --probe_steps_left_;
    return probe_depth_;
  }
  if (--steps_until_probe_ > 0 || costs_.max_depth() == 0) return best;
  probe_interval_ = std::min(2 * probe_interval_, kLastProbe);
  steps_until_probe_ = probe_interval_;
  probe_depth_ = best == 0 || (probe_deeper_ && best < costs_.max_depth()) ? best + 1 : best - 1;
  probe_deeper_ = probe_depth_ < best;
  probe_steps_left_ = rate(probe_depth_) > kNearRate * rate(best) ? kProbeSteps - 1 : 0;
  return probe_depth_;
}

void AdaptiveDepth::observe_seconds(int32_t batch_size, int32_t depth, double seconds) {
  RunningMean& correction = correction_[costs_.nearest(batch_size)][depth];
  const double ratio = seconds / measured_seconds(batch_size, depth);
  if (depth == usual_)
    pace_.observe(without_outlier(ratio / correction.value, pace_.value), kPaceWeight);
  else
    correction.observe(without_outlier(ratio / pace_.value, correction.value), kCorrectionWeight);
}

void AdaptiveDepth::observe(int drafted, int accepted) {
  for (int position = 0; position < std::min<int>(drafted, costs_.max_depth()); ++position) {
    if (position > accepted) return;  // its predecessor was refused
    acceptance_[position].observe(position < accepted ? 1.0 : 0.0, kAcceptanceWeight);
  }
}

}  // namespace foresail
