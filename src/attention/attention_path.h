// The cost model behind the choice between the two forms of attention in a prefill pass.
#pragma once

#include <cstdint>
#include <span>

#include "attention/attention_plan.h"

namespace foresail {

// Multiply-adds of `row_count` query rows over `key_count` keys: absorbed rows·keys·(2c + r) a head
// and rows·c·(n + v) for the projections, expanded rows·keys·(n + r + v) plus the up-projection
// keys·c·(n + v). At 512/128/128 the break-even lies near 171 rows (at r = 64).
struct PathCost {
  double absorbed = 0.0;
  double expanded = 0.0;
};
inline PathCost path_cost(const ModelConfig& c, int64_t row_count, int64_t key_count) {
  const auto up_projection = static_cast<double>(c.kv_lora_rank * (c.nope_dim + c.value_dim));
  const double pairs = static_cast<double>(row_count) * static_cast<double>(key_count);
  return {.absorbed = pairs * static_cast<double>(2 * c.kv_lora_rank + c.rope_dim) +
                      static_cast<double>(row_count) * up_projection,
          .expanded = pairs * static_cast<double>(c.nope_dim + c.rope_dim + c.value_dim) +
                      static_cast<double>(key_count) * up_projection};
}

// The form that costs less for the whole pass.
inline AttentionPath cheaper_path(const ModelConfig& c, std::span<const PassLengths> requests) {
  PathCost sum;
  for (const PassLengths& request : requests) {
    const PathCost cost = path_cost(c, request.row_count, request.kv_end);
    sum.absorbed += cost.absorbed;
    sum.expanded += cost.expanded;
  }
  return sum.expanded < sum.absorbed ? AttentionPath::kExpanded : AttentionPath::kAbsorbed;
}
inline AttentionPath cheaper_path(const ModelConfig& c, int64_t row_count, int64_t key_count) {
  const PassLengths one{static_cast<int32_t>(row_count), static_cast<int32_t>(key_count)};
  return cheaper_path(c, {&one, 1});
}

}  // namespace foresail
