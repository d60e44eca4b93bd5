#include "server/metrics.h"

#include <algorithm>

namespace foresail {
namespace {

// The edges of vLLM's histograms, so that its dashboards read these too.
const std::vector<double> kTtft = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                   0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                   20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
const std::vector<double> kPerToken = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                       0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0,   2.5,
                                       5.0,   7.5,    10.0,  20.0, 40.0,  80.0};
const std::vector<double> kRequest = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                      5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                      60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const std::vector<double> kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                                     500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const std::vector<double> kAcceptLength = {1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 12, 16};

void add(std::atomic<double>& sum, double value) {
  double seen = sum.load();
  while (!sum.compare_exchange_weak(seen, seen + value)) {
  }
}

}  // namespace

Histogram::Histogram(std::vector<double> edges)
    : edges_(std::move(edges)), counts_(edges_.size() + 1) {}

void Histogram::observe(double value, int64_t times) {
  const auto edge = std::lower_bound(edges_.begin(), edges_.end(), value);
  counts_[edge - edges_.begin()] += times;
  add(sum_, value * static_cast<double>(times));
}

Histogram::Snapshot Histogram::snapshot() const {
  Snapshot out{.sum = sum_};
  for (size_t i = 0; i < edges_.size(); ++i) {
    out.count += counts_[i];
    out.at_most.push_back(out.count);
  }
  out.count += counts_.back();
  return out;
}

Metrics::Metrics()
    : ttft_s(kTtft),
      inter_token_s(kPerToken),
      request_s(kRequest),
      queue_s(kRequest),
      prefill_s(kRequest),
      decode_s(kRequest),
      per_output_token_s(kPerToken),
      prompt_tokens(kTokens),
      output_tokens(kTokens),
      accept_length(kAcceptLength) {}

void Metrics::count_drafts(const GenerationStats& before, const GenerationStats& now) {
  draft_passes += now.draft_passes() - before.draft_passes();
  drafted += now.drafted - before.drafted;
  accepted += now.accepted - before.accepted;
  const auto count = [](std::array<Counter, kMaxPositions>& counters,
                        const std::vector<int64_t>& old_at, const std::vector<int64_t>& at) {
    for (size_t i = 0; i < std::min(at.size(), kMaxPositions); ++i)
      counters[i] += at[i] - (i < old_at.size() ? old_at[i] : 0);
  };
  count(drafted_at, before.drafted_at, now.drafted_at);
  count(accepted_at, before.accepted_at, now.accepted_at);
}

void Metrics::count_first_token(const GenerationStats& stats) {
  ttft_s.observe(stats.ttft_s);
  prefill_s.observe(stats.prefill_s);
  queue_s.observe(std::max(0.0, stats.ttft_s - stats.prefill_s));
}

void Metrics::count_tokens_after(double gap_s, int64_t tokens) {
  inter_token_s.observe(gap_s / static_cast<double>(tokens), tokens);
}

void Metrics::count_end(const GenerationStats& stats, double elapsed_s) {
  switch (stats.finish) {
    case FinishReason::kLength:
      ++ended_by_length;
      break;
    case FinishReason::kAborted:
      ++ended_by_abort;
      break;
    case FinishReason::kFailed:
      ++ended_by_error;
      break;
    default:
      ++ended_by_stop;
  }
  request_s.observe(elapsed_s);
  decode_s.observe(stats.decode_s);
  prompt_tokens.observe(static_cast<double>(stats.prompt_tokens));
  output_tokens.observe(static_cast<double>(stats.output_tokens));
  if (stats.output_tokens > 1)
    per_output_token_s.observe(stats.decode_s / static_cast<double>(stats.output_tokens - 1));
  if (stats.drafted > 0) accept_length.observe(stats.accept_length());
}

void Metrics::count_response(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[{route, status}];
}

void Metrics::count_rejection(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++rejections_[reason];
}

std::map<std::pair<std::string, int>, int64_t> Metrics::responses() const {
  const std::lock_guard lock(mutex_);
  return responses_;
}

std::map<std::string, int64_t> Metrics::rejections() const {
  const std::lock_guard lock(mutex_);
  return rejections_;
}

}  // namespace foresail
