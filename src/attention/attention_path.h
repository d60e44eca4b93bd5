// The one place that decides which form of attention a prefill pass runs. Decode and verify are
// always absorbed.
#pragma once

#include <cstdint>

#include "checkpoint/model_config.h"
#include "model/forward_batch.h"

namespace foresail {

// Multiply-adds of one request's pass over `key_count` keys with `row_count` query rows:
// absorbed rows·keys·(2c + r) a head, expanded rows·keys·(n + r + v) plus the up-projection
// keys·c·(n + v). At 512/128/128 the break-even lies near 171 rows (at r = 64).
inline AttentionPath cheaper_path(const ModelConfig& c, int64_t row_count, int64_t key_count) {
  const auto up_projection = static_cast<double>(c.kv_lora_rank * (c.nope_dim + c.value_dim));
  const double pairs = static_cast<double>(row_count) * static_cast<double>(key_count);
  const double absorbed = pairs * static_cast<double>(2 * c.kv_lora_rank + c.rope_dim) +
                          static_cast<double>(row_count) * up_projection;
  const double expanded = pairs * static_cast<double>(c.nope_dim + c.rope_dim + c.value_dim) +
                          static_cast<double>(key_count) * up_projection;
  return expanded < absorbed ? AttentionPath::kExpanded : AttentionPath::kAbsorbed;
}

}  // namespace foresail
