#include "attention/attention_path.h"

#include <algorithm>

#include "base/checked_math.h"
#include "model/pass.h"

namespace foresail {

double attention_multiply_adds(const ModelConfig& c) {
  const int64_t query = c.q_lora_rank == 0 ? c.hidden_dim * c.query_dim()
                                           : c.q_lora_rank * (c.hidden_dim + c.query_dim());
  return static_cast<double>(query + c.hidden_dim * c.latent_row_dim() +
                             c.head_count * c.kv_lora_rank * (c.nope_dim + c.value_dim) +
                             c.head_count * c.value_dim * c.hidden_dim);
}

double row_multiply_adds(const ModelConfig& c) {
  const auto expert = 3.0 * static_cast<double>(c.hidden_dim * c.moe.inner_dim);
  double sum = 0.0;
  for (const bool is_moe : c.layer_is_moe)
    sum += attention_multiply_adds(c) +
           (is_moe ? static_cast<double>(c.moe.top_k + c.moe.shared_expert_count) * expert
                   : 3.0 * static_cast<double>(c.hidden_dim * c.intermediate_dim));
  return sum;
}

PathCost path_cost(const ModelConfig& c, int64_t row_count, int64_t key_count,
                   const AttentionConfig& config) {
  const AttentionRates& rates = config.rates;
  const auto rows = static_cast<double>(row_count);
  const auto cached = static_cast<double>(key_count - row_count);
  const auto heads = static_cast<double>(std::max<int64_t>(1, c.head_count));
  const auto up_projection = static_cast<double>(c.kv_lora_rank * (c.nope_dim + c.value_dim));
  const double keys_a_row = cached + rates.own_pairs * rows;

  PathCost cost;
  cost.absorbed =
      rows * keys_a_row * static_cast<double>(2 * c.kv_lora_rank + c.rope_dim) / rates.absorbed +
      rows * up_projection / rates.up_projection;
  if (rounds(row_count))
    cost.absorbed += rows * row_multiply_adds(c) /
                     static_cast<double>(std::max<int64_t>(1, c.layer_count)) /
                     (heads * rates.second_term);

  const auto blocks = static_cast<double>(ceil_div(row_count, rates.block_rows));
  const double rate = rounds(row_count)
                          ? std::min(rates.expanded, heads * blocks * rates.block)
                          : std::min(rates.exact_expanded, heads * blocks * rates.exact_block);
  const auto lists =
      static_cast<double>(1 + ceil_div<int64_t>(key_count - row_count, config.prefix_chunk_keys));
  cost.expanded = blocks * static_cast<double>(rates.block_rows) * keys_a_row *
                      static_cast<double>(c.nope_dim + c.rope_dim + c.value_dim) / rate +
                  static_cast<double>(key_count) * up_projection / rates.up_projection +
                  lists * rates.key_list / heads;
  return cost;
}

AttentionPath cheaper_path(const ModelConfig& model, std::span<const PassLengths> requests,
                           const AttentionConfig& config) {
  PathCost sum;
  for (const PassLengths& request : requests) {
    const PathCost cost = path_cost(model, request.row_count, request.kv_end, config);
    sum.absorbed += cost.absorbed;
    sum.expanded += cost.expanded;
  }
  return sum.expanded < sum.absorbed ? AttentionPath::kExpanded : AttentionPath::kAbsorbed;
}

AttentionPath cheaper_path(const ModelConfig& model, int64_t row_count, int64_t key_count,
                           const AttentionConfig& config) {
  const PassLengths one{static_cast<int32_t>(row_count), static_cast<int32_t>(key_count)};
  return cheaper_path(model, {&one, 1}, config);
}

}  // namespace foresail
