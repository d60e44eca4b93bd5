// What the server counts. Fed on the strands of requests, read by /metrics: atomics only, the
// engine thread is never asked.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "foresail/output.h"

namespace foresail {

class Histogram {
 public:
  explicit Histogram(std::vector<double> edges);
  void observe(double value, int64_t times = 1);

  struct Snapshot {
    std::vector<int64_t> at_most;  // [edge], cumulative
    int64_t count = 0;
    double sum = 0.0;
  };
  const std::vector<double>& edges() const { return edges_; }
  Snapshot snapshot() const;

 private:
  std::vector<double> edges_;
  std::vector<std::atomic<int64_t>> counts_;  // [edge], and one more for what is beyond
  std::atomic<double> sum_{0.0};
};

class Metrics {
 public:
  static constexpr size_t kMaxPositions = 16;
  using Counter = std::atomic<int64_t>;

  Metrics();

  // From the figures of a request as they were to what they are.
  void count_drafts(const GenerationStats& before, const GenerationStats& now);
  void count_first_token(const GenerationStats& stats);
  void count_tokens_after(double gap_s, int64_t tokens);
  void count_end(const GenerationStats& stats, double elapsed_s);
  void count_response(const std::string& route, int status);
  void count_rejection(const std::string& reason);
  std::map<std::pair<std::string, int>, int64_t> responses() const;
  std::map<std::string, int64_t> rejections() const;

  Histogram ttft_s, inter_token_s, request_s, queue_s, prefill_s, decode_s, per_output_token_s,
      prompt_tokens, output_tokens, accept_length;
  Counter ended_by_stop{0}, ended_by_length{0}, ended_by_abort{0}, ended_by_error{0};
  Counter draft_passes{0}, drafted{0}, accepted{0};
  std::array<Counter, kMaxPositions> drafted_at{}, accepted_at{};
  Counter gone_while_waiting{0}, gone_while_running{0};
  Counter cut_by_shutdown{0};  // requests

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> responses_;
  std::map<std::string, int64_t> rejections_;
};

}  // namespace foresail
