#include "speculative/adaptive_depth.h"

#include <algorithm>

namespace foresail {
namespace {

// Before anything was seen: optimistic, so that depth is tried before it is given up.
constexpr double kPrior = 0.8;
// What a guess is worth, in observations.
constexpr int64_t kGuessWeight = 3;
// In the long run: the mean of about the last 50 drafts of a position.
constexpr double kAcceptanceWeight = 1.0 / 50;
// Context grows and neighbours come and go, so times are followed over about 30 iterations; one
// that was interrupted must not count for more than this.
constexpr double kTimeWeight = 1.0 / 30;
constexpr double kOutlier = 2.0;
// Positions beyond the chosen depth go unmeasured, so a step now and then goes one deeper. The
// interval doubles while that teaches nothing new: a probe costs at most about one iteration.
constexpr int64_t kFirstProbe = 32;
constexpr int64_t kLastProbe = 512;

}  // namespace

void AdaptiveDepth::RunningMean::observe(double sample, double least_weight) {
  ++count;
  value +=
      std::max(least_weight, 1.0 / static_cast<double>(kGuessWeight + count)) * (sample - value);
}

double StepCosts::at(int32_t batch_size, int32_t depth) const {
  if (batch_sizes_.size() == 1)
    return seconds_[0][depth] * static_cast<double>(batch_size) / batch_sizes_[0];
  size_t upper = 1;
  while (upper + 1 < batch_sizes_.size() && batch_sizes_[upper] < batch_size) ++upper;
  const double low = seconds_[upper - 1][depth];
  const double high = seconds_[upper][depth];
  const double share = static_cast<double>(batch_size - batch_sizes_[upper - 1]) /
                       (batch_sizes_[upper] - batch_sizes_[upper - 1]);
  return low + share * (high - low);
}

AdaptiveDepth::AdaptiveDepth(StepCosts costs)
    : costs_(std::move(costs)),
      acceptance_(costs_.max_depth(), {.value = kPrior}),
      correction_(costs_.max_depth() + 1, {.value = 1.0}),
      steps_until_probe_(kFirstProbe),
      probe_interval_(kFirstProbe) {}

double AdaptiveDepth::expected_tokens(int32_t depth) const {
  double tokens = 1.0, chain = 1.0;
  for (int32_t position = 0; position < depth; ++position)
    tokens += chain *= acceptance_[position].value;
  return tokens;
}

int32_t AdaptiveDepth::choose(int32_t batch_size) {
  if (batch_size == 0) return costs_.max_depth();
  int32_t best = 0;
  double best_rate = 0.0;
  for (int32_t depth = 0; depth <= costs_.max_depth(); ++depth) {
    const double rate = expected_tokens(depth) / expected_seconds(batch_size, depth);
    if (rate > best_rate) {
      best_rate = rate;
      best = depth;
    }
  }
  if (best != last_best_) {
    steps_until_probe_ = probe_interval_ = kFirstProbe;
    last_best_ = best;
  }
  if (best < costs_.max_depth() && --steps_until_probe_ <= 0) {
    probe_interval_ = std::min(2 * probe_interval_, kLastProbe);
    steps_until_probe_ = probe_interval_;
    return best + 1;
  }
  return best;
}

void AdaptiveDepth::observe_seconds(int32_t batch_size, int32_t depth, double seconds) {
  RunningMean& correction = correction_[depth];
  const double ratio = seconds / costs_.at(batch_size, depth);
  correction.observe(std::clamp(ratio, correction.value / kOutlier, correction.value * kOutlier),
                     kTimeWeight);
}

void AdaptiveDepth::observe(int drafted, int accepted) {
  for (int position = 0; position < std::min<int>(drafted, costs_.max_depth()); ++position) {
    if (position > accepted) return;  // its predecessor was refused
    acceptance_[position].observe(position < accepted ? 1.0 : 0.0, kAcceptanceWeight);
  }
}

}  // namespace foresail
