#include "engine/latency_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "attention/attention_path.h"
#include "base/random.h"

namespace foresail {
namespace {

constexpr int64_t kChunkRows = 2048;  // as in generation

double expert_parameters(const ModelConfig& c) {
  return 3.0 * static_cast<double>(c.hidden_dim * c.moe.inner_dim);
}

}  // namespace

double distinct_experts(const ModelConfig& c, int64_t rows) {
  const auto experts = static_cast<double>(c.moe.expert_count);
  if (experts == 0.0) return 0.0;
  return experts * (1.0 - std::pow(1.0 - static_cast<double>(c.moe.top_k) / experts,
                                   static_cast<double>(rows)));
}

double expert_weight_bytes(const ModelConfig& c, int64_t rows, int64_t bytes_per_element) {
  const auto layers = std::count(c.layer_is_moe.begin(), c.layer_is_moe.end(), true);
  return static_cast<double>(layers * bytes_per_element) * distinct_experts(c, rows) *
         expert_parameters(c);
}

double pass_weight_bytes(const ModelConfig& c, int64_t rows, int64_t bytes_per_element) {
  double parameters = static_cast<double>(c.vocab_size * c.hidden_dim);
  for (const bool is_moe : c.layer_is_moe) {
    parameters += attention_multiply_adds(c);
    if (!is_moe) {
      parameters += 3.0 * static_cast<double>(c.hidden_dim * c.intermediate_dim);
      continue;
    }
    parameters += static_cast<double>(c.moe.expert_count * c.hidden_dim) +
                  static_cast<double>(c.moe.shared_expert_count) * expert_parameters(c);
  }
  return parameters * static_cast<double>(bytes_per_element) +
         expert_weight_bytes(c, rows, bytes_per_element);
}

double pass_operations(const ModelConfig& c, int64_t rows, int64_t depth, int64_t logit_rows,
                       AttentionPath path) {
  const double pairs = static_cast<double>(rows) * static_cast<double>(depth) +
                       0.5 * static_cast<double>(rows) * static_cast<double>(rows + 1);
  const double per_pair = path == AttentionPath::kAbsorbed
                              ? static_cast<double>(2 * c.kv_lora_rank + c.rope_dim)
                              : static_cast<double>(c.nope_dim + c.rope_dim + c.value_dim);
  return 2.0 * (row_multiply_adds(c) * static_cast<double>(rows) +
                pairs * per_pair * static_cast<double>(c.head_count * c.layer_count) +
                static_cast<double>(logit_rows) * static_cast<double>(c.vocab_size * c.hidden_dim));
}

LatencyBench::LatencyBench(LoadedModel& model, uint64_t seed) : model_(model), seed_(seed) {
  for (int64_t page = 1; page <= model.pages_per_slot(); ++page)
    page_table_.push_back(static_cast<int32_t>(page));
}

AttentionPath LatencyBench::pass(int64_t rows, int64_t depth, bool is_prefill, uint64_t draw) {
  const int page_size = model_.store().page_size();
  AttentionPath path = AttentionPath::kAbsorbed;
  for (int64_t begin = 0; begin < rows; begin += kChunkRows) {
    const int64_t count = std::min(kChunkRows, rows - begin);
    std::vector<int32_t> tokens, positions, slots, logit_rows;
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<int32_t>(depth + begin + i);
      tokens.push_back(
          static_cast<int32_t>(random_bits(seed_ + draw, position, RandomPurpose::kShuffle) %
                               model_.config().vocab_size));
      positions.push_back(position);
      slots.push_back(page_table_[position / page_size] * page_size + position % page_size);
      if (!is_prefill || begin + i + 1 == rows) logit_rows.push_back(static_cast<int32_t>(i));
    }
    const int64_t kv_end = depth + begin + count;
    const PassRows request{page_table_.data(),
                           {static_cast<int32_t>(count), static_cast<int32_t>(kv_end)}};
    const PreparedPass pass = model_.planner().prepare(
        is_prefill ? PassKind::kPrefill : PassKind::kVerify, {&request, 1});
    if (begin == 0) path = pass.plan.path;
    model_.model().forward({tokens,
                            positions,
                            slots,
                            pass.sequences,
                            logit_rows,
                            {},
                            pass.plan.path,
                            pass.prefix_parts},
                           model_.store().layers(pass.keys_are_slots()));
  }
  model_.kernels().memory().wait();
  return path;
}

PassTime LatencyBench::time_pass(int64_t rows, int64_t depth, bool is_prefill, int runs) {
  std::vector<double> times;
  const AttentionPath path = pass(rows, depth, is_prefill, 0);
  for (int run = 1; run <= runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    pass(rows, depth, is_prefill, run);
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  const ModelConfig& config = model_.config();
  const int64_t element_bytes = model_.kernels().act_dtype() == DType::kF32 ? 4 : 2;
  PassTime result{.rows = rows,
                  .depth = depth,
                  .median_s = times[times.size() / 2],
                  .fastest_s = times[0],
                  .runs = runs};
  const double kv_row_bytes = static_cast<double>(
      config.latent_row_dim() * static_cast<int64_t>(size_bytes(model_.store().layers()[0].dtype)));
  result.expert_bytes = expert_weight_bytes(config, rows, element_bytes);
  result.bytes =
      pass_weight_bytes(config, rows, element_bytes) +
      static_cast<double>(depth + rows) * kv_row_bytes * static_cast<double>(config.layer_count);
  result.operations = pass_operations(config, rows, depth, is_prefill ? 1 : rows, path);
  return result;
}

}  // namespace foresail
