// Times of one forward pass, and the floors they are judged by: bytes over measured bandwidth and
// operations over the measured arithmetic rate of the same run.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/loaded_model.h"

namespace foresail {

struct PassTime {
  int64_t rows = 0;   // query rows of the pass
  int64_t depth = 0;  // keys in the cache before it
  double median_s = 0.0, fastest_s = 0.0;
  int runs = 0;
  double bytes = 0.0;         // weights and KV that one pass must read (expected distinct experts)
  double expert_bytes = 0.0;  // the part of `bytes` that routed experts are
  double operations = 0.0;    // multiply-adds count as two
};

// Routed experts of one layer that `rows` rows choose, in expectation for uniform routing:
// E (1 - (1 - k/E)^rows). 0 without experts.
double distinct_experts(const ModelConfig& config, int64_t rows);
double expert_weight_bytes(const ModelConfig& config, int64_t rows, int64_t bytes_per_element);
// Matrix weights that a pass of `rows` rows reads, each distinct expert once.
double pass_weight_bytes(const ModelConfig& config, int64_t rows, int64_t bytes_per_element);
double pass_operations(const ModelConfig& config, int64_t rows, int64_t depth, int64_t logit_rows,
                       AttentionPath path);

class LatencyBench {
 public:
  LatencyBench(LoadedModel& model, uint64_t seed);
  // `rows` fresh random tokens after `depth` cached ones. Decode and verify ask for all logits,
  // prefill for the last row's only.
  PassTime time_pass(int64_t rows, int64_t depth, bool is_prefill, int runs);

 private:
  // The form that the plan of its first chunk chose.
  AttentionPath pass(int64_t rows, int64_t depth, bool is_prefill, uint64_t draw);
  LoadedModel& model_;
  uint64_t seed_;
  std::vector<int32_t> page_table_;
};

}  // namespace foresail
