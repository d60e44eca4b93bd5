// The cost model behind the choice between the two forms of attention in a prefill pass: the one
// place where it is made. A pure function of shapes and of the device's rates.
#pragma once

#include <cstdint>
#include <span>

#include "attention/attention_plan.h"

namespace foresail {

// Multiply-adds of one row with the weights around attention, in one layer; with all weights of all
// layers.
double attention_multiply_adds(const ModelConfig& config);
double row_multiply_adds(const ModelConfig& config);

// What `row_count` query rows over `key_count` keys cost in a layer, in the unit of config.rates
// over the number of heads, without what both forms cost. By multiply-adds a head: absorbed
// rows·keys·(2c + r) and rows·c·(n + v) for the projections, expanded rows·keys·(n + r + v) plus
// the up-projection keys·c·(n + v). Where multiply-adds are all that counts, as on the CPU, the
// break-even of 512/128/128 lies near 171 rows (at r = 64).
struct PathCost {
  double absorbed = 0.0;
  double expanded = 0.0;
};
PathCost path_cost(const ModelConfig& model, int64_t row_count, int64_t key_count,
                   const AttentionConfig& config = {});

// The form that costs less for the whole pass.
AttentionPath cheaper_path(const ModelConfig& model, std::span<const PassLengths> requests,
                           const AttentionConfig& config = {});
AttentionPath cheaper_path(const ModelConfig& model, int64_t row_count, int64_t key_count,
                           const AttentionConfig& config = {});

}  // namespace foresail
