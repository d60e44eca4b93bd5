#include "speculative/adaptive_depth.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace foresail {
namespace {

// Before anything was seen: optimistic, so that depth is tried before it is given up.
constexpr double kPrior = 0.8;
constexpr int64_t kPriorCount = 3;
// In the long run: the mean of about the last 400 drafts of a position, which knows the rate of a
// depth to 1 or 2 %. A position that only probes reach sees few and must come back from a bad text.
constexpr double kAcceptanceWeight = 1.0 / 400;
constexpr double kProbedAcceptanceWeight = 1.0 / 100;
// One comparison tells how two depths compare to some 7 %, so many of them count, and the start-up
// measurement as one of the first. A comparison that is farther off than this was disturbed.
constexpr int64_t kCostCount = 2;
constexpr double kCorrectionWeight = 1.0 / 20;
constexpr double kMostSurprise = 0.3;  // of a logarithm
// Iterations before and after a probe that it is compared with.
constexpr size_t kWindow = 4;
// A probe is a few iterations at a neighbouring depth, or at one beyond that may pay although the
// neighbour does not: the first of them still verifies the usual number of drafts. The interval
// doubles while the usual depth stays. Where the neighbour pays so much less that no error of its
// costs explains it, one iteration tells of its acceptance.
constexpr int64_t kProbeSteps = 5;
constexpr double kNearRate = 0.75;
constexpr int64_t kFirstProbe = 32;
constexpr int64_t kLastProbe = 256;
// Depths whose rates differ by no more than what is known of them take turns for nothing: each turn
// has an iteration that verifies one number of drafts and proposes another. A better one must pay
// so much more.
constexpr double kWorthATurn = 1.01;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
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

template <typename Seconds>
double StepCosts::on_line(int32_t batch_size, const Seconds& seconds_of) const {
  if (batches_.size() == 1)
    return seconds_of(batches_[0]) * static_cast<double>(batch_size) / batches_[0].batch_size;
  const size_t upper = std::max<size_t>(1, nearest(batch_size));
  const MeasuredBatch& low = batches_[upper - 1];
  const MeasuredBatch& high = batches_[upper];
  const double share =
      static_cast<double>(batch_size - low.batch_size) / (high.batch_size - low.batch_size);
  const double seconds = std::lerp(seconds_of(low), seconds_of(high), share);
  // Far beyond, the line through two noisy times may fall, below zero in the end.
  return share > 1.0 ? std::max(seconds, seconds_of(high)) : seconds;
}

double StepCosts::at(int32_t batch_size, int32_t depth, double accepted) const {
  return on_line(batch_size, [&](const MeasuredBatch& batch) {
    return batch.seconds[depth] +
           (depth == 0 ? 0.0 : accepted / depth * batch.accepted_seconds[depth]);
  });
}

double StepCosts::catch_up(int32_t batch_size) const {
  return on_line(batch_size, [](const MeasuredBatch& batch) { return batch.catch_up_seconds; });
}

AdaptiveDepth::AdaptiveDepth(StepCosts costs)
    : costs_(std::move(costs)),
      acceptance_(costs_.max_depth(), {.value = kPrior, .count = kPriorCount}),
      step_correction_(
          costs_.measured_count(),
          std::vector<RunningMean>(costs_.max_depth(), {.value = 0.0, .count = kCostCount})),
      steps_until_probe_(kFirstProbe),
      probe_interval_(kFirstProbe) {}

double AdaptiveDepth::corrected_seconds(int32_t batch_size, int32_t depth) const {
  double correction = 0.0;
  for (int32_t step = 0; step < depth; ++step)
    correction += step_correction_[costs_.nearest(batch_size)][step].value;
  return std::exp(correction) * measured_seconds(batch_size, depth);
}

double AdaptiveDepth::expected_seconds(int32_t batch_size, int32_t depth) const {
  return corrected_seconds(batch_size, depth) + (depth == 0 ? costs_.catch_up(batch_size) : 0.0);
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
  if (usual_ < 0 || rate(best) > kWorthATurn * rate(usual_)) {
    // Next door most costs are known already: probes come as rarely as before. The next one is not
    // put off, or a depth that changes often would never be probed around.
    const bool next_door = usual_ >= 0 && std::abs(best - usual_) == 1;
    if (!next_door) probe_interval_ = kFirstProbe;
    steps_until_probe_ = std::min(steps_until_probe_, probe_interval_);
    probe_steps_left_ = 0;
    usual_ = best;
    comparison_.clear();
  }
  if (probe_steps_left_ > 0) {
    --probe_steps_left_;
    return probe_depth_;
  }
  if (--steps_until_probe_ > 0 || costs_.max_depth() == 0) return usual_;
  probe_interval_ = std::min(2 * probe_interval_, kLastProbe);
  steps_until_probe_ = probe_interval_;
  probe_depth_ = next_probe(batch_size);
  probe_deeper_ = probe_depth_ < usual_;
  probe_steps_left_ = rate(probe_depth_) > kNearRate * rate(usual_) ? kProbeSteps - 1 : 0;
  return probe_depth_;
}

int32_t AdaptiveDepth::next_probe(int32_t batch_size) {
  const bool deeper = usual_ == 0 || (probe_deeper_ && usual_ < costs_.max_depth());
  if (!deeper) return usual_ - 1;
  far_probe_ = !far_probe_;
  return far_probe_ ? hopeful_depth(batch_size) : usual_ + 1;
}

int32_t AdaptiveDepth::hopeful_depth(int32_t batch_size) const {
  double tokens = expected_tokens(usual_), chain = 1.0;
  for (int32_t position = 0; position < usual_; ++position) chain *= acceptance_[position].value;
  int32_t best = usual_ + 1;
  double best_rate = kWorthATurn * tokens / expected_seconds(batch_size, usual_);
  for (int32_t depth = usual_ + 1; depth <= costs_.max_depth(); ++depth) {
    tokens += chain *= std::max(acceptance_[depth - 1].value, acceptance_[usual_].value);
    const double rate = tokens / expected_seconds(batch_size, depth);
    if (rate <= best_rate) continue;
    best = depth;
    best_rate = rate;
  }
  return best;
}

void AdaptiveDepth::observe_seconds(int32_t batch_size, int32_t depth, double seconds) {
  if (!std::isfinite(seconds) || seconds <= 0.0) return;  // a clock too coarse
  if (batch_size != comparison_.batch_size) {
    comparison_.clear();
    comparison_.batch_size = batch_size;
  }
  std::vector<double>& before = comparison_.before;
  if (depth == probe_depth_ && depth != usual_) {
    // Requests that limit their drafts themselves may be at this depth for as long as they run.
    if (comparison_.probe.size() < kWindow) comparison_.probe.push_back(seconds);
  } else if (depth == usual_ && comparison_.probe.empty()) {
    if (before.size() == kWindow) before.erase(before.begin());
    before.push_back(seconds);
  } else if (depth == usual_) {
    comparison_.after.push_back(seconds);
    if (comparison_.after.size() == kWindow) learn_from_comparison();
  }
}

void AdaptiveDepth::learn_from_comparison() {
  const int32_t batch_size = comparison_.batch_size;
  if (comparison_.before.size() == kWindow) {
    const double around = 0.5 * (median(comparison_.before) + median(comparison_.after));
    const double surprise =
        std::log(median(comparison_.probe) / around * corrected_seconds(batch_size, usual_) /
                 corrected_seconds(batch_size, probe_depth_));
    const auto [low, high] = std::minmax(usual_, probe_depth_);
    const double deeper =
        std::clamp(probe_depth_ > usual_ ? surprise : -surprise, -kMostSurprise, kMostSurprise) /
        (high - low);
    for (int32_t depth = low; depth < high; ++depth) {
      RunningMean& step = step_correction_[costs_.nearest(batch_size)][depth];
      step.observe(step.value + deeper, kCorrectionWeight);
    }
  }
  comparison_.before = std::exchange(comparison_.after, {});
  comparison_.probe.clear();
}

void AdaptiveDepth::observe(int drafted, int accepted) {
  for (int position = 0; position < std::min<int>(drafted, costs_.max_depth()); ++position) {
    if (position > accepted) return;  // its predecessor was refused
    acceptance_[position].observe(position < accepted ? 1.0 : 0.0,
                                  position < usual_ ? kAcceptanceWeight : kProbedAcceptanceWeight);
  }
}

}  // namespace foresail
