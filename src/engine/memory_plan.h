// What a model will need, told before anything is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/checked_math.h"
#include "checkpoint/model_config.h"
#include "foresail/options.h"

namespace foresail {

struct MemoryPlan {
  uint64_t weight_bytes = 0;  // packed, embeddings included
  uint64_t second_bytes = 0;  // of these what is there in a second form too
  uint64_t kv_bytes = 0;      // for cached_tokens
  uint64_t workspace_bytes = 0;
  uint64_t graph_bytes = 0;       // a GPU's recorded passes, at most
  uint64_t kept_row_bytes = 0;    // of a drafter on a GPU: rows that wait for it, at most
  uint64_t token_term_bytes = 0;  // of a GPU: counts, biases and masks of tokens, by request
  uint64_t available_bytes = 0;   // of the device that options name
  int64_t context_length = 0;     // tokens of one request
  int64_t cached_tokens = 0;      // of all requests together
  uint64_t kv_bytes_per_token = 0;
  bool has_f32_weights = false;  // half the bytes would do
  // What to lower where the cache does not fit, and how many tokens of cache one of it costs.
  std::string_view size_field = "options.context_length";
  int64_t tokens_per_size = 1;
  // However many requests run.
  uint64_t model_bytes() const {
    return saturating_add(saturating_add(weight_bytes, workspace_bytes), graph_bytes);
  }
  uint64_t fixed_bytes() const {
    return saturating_add(model_bytes(), saturating_add(kept_row_bytes, token_term_bytes));
  }
  uint64_t total_bytes() const { return saturating_add(fixed_bytes(), kv_bytes); }
};

// Throws Error{kUsage} where a context is asked for that the model has no positions for.
void check_context_length(const ModelConfig& config, int64_t context_length);
// By name; what "auto" stands for.
const std::string& kv_cache_dtype(const ModelOptions& options);
MemoryPlan plan_memory(const ModelConfig& config, const ModelOptions& options, bool with_mtp);
// Throws Error{kDevice} with the sum and the value that would fit.
void require_fits(const MemoryPlan& plan);
// MemAvailable of this machine, or the smaller limit of its control group.
uint64_t available_memory_bytes();
// What a plan holds for a GPU alone, each with " + " ahead; empty where there is nothing.
std::string device_parts(uint64_t graph_bytes, uint64_t kept_row_bytes, uint64_t token_term_bytes);
// "12.3 MiB", "1.25 GiB"
std::string format_bytes(uint64_t size_bytes);

}  // namespace foresail
