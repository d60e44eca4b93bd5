// The one place that decides which form of attention a prefill pass runs. Decode and verify are
// always absorbed.
#pragma once

#include <cstdint>

#include "model/forward_batch.h"

namespace foresail {

struct AttentionDims {
  int64_t head_count = 0, nope_dim = 0, rope_dim = 0, value_dim = 0, latent_dim = 0;
};

// Multiply-adds of one request's pass over `key_count` keys with `row_count` query rows:
// absorbed rows·keys·(2c + r) a head, expanded rows·keys·(n + r + v) plus the up-projection
// keys·c·(n + v). At 512/128/128 the break-even lies near 171 rows (at r = 64).
inline AttentionPath cheaper_path(const AttentionDims& d, int64_t row_count, int64_t key_count) {
  const double pairs = static_cast<double>(row_count) * static_cast<double>(key_count);
  const double absorbed = pairs * static_cast<double>(2 * d.latent_dim + d.rope_dim) +
                          static_cast<double>(row_count) * d.latent_dim * (d.nope_dim + d.value_dim);
  const double expanded = pairs * static_cast<double>(d.nope_dim + d.rope_dim + d.value_dim) +
                          static_cast<double>(key_count) * d.latent_dim * (d.nope_dim + d.value_dim);
  return expanded < absorbed ? AttentionPath::kExpanded : AttentionPath::kAbsorbed;
}

}  // namespace foresail
