#include "model/mla_attention.h"

#include <algorithm>

#include "base/check.h"

namespace foresail {

MlaAttention::MlaAttention(const ModelConfig& config, WeightLoader& loader,
                           const std::string& prefix, int64_t input_dim)
    : head_count_(static_cast<int>(config.head_count)),
      nope_dim_(static_cast<int>(config.nope_dim)),
      rope_dim_(static_cast<int>(config.rope_dim)),
      value_dim_(static_cast<int>(config.value_dim)),
      latent_dim_(static_cast<int>(config.kv_lora_rank)),
      q_lora_rank_(config.q_lora_rank),
      softmax_scale_(static_cast<float>(config.softmax_scale())),
      residual_scale_(static_cast<float>(config.residual_scale)),
      latent_eps_(static_cast<float>(config.latent_norm_eps)) {
  const auto bias = [&](const char* name, int64_t dim) {
    return config.attention_bias ? loader.vector(prefix + name, dim) : Buffer{};
  };
  if (q_lora_rank_ == 0) {
    q_proj_ = loader.matrix(prefix + "q_proj.weight", config.query_dim(), input_dim);
  } else {
    q_a_ = loader.matrix(prefix + "q_a_proj.weight", q_lora_rank_, input_dim);
    q_a_bias_ = bias("q_a_proj.bias", q_lora_rank_);
    q_a_norm_ = loader.vector(prefix + "q_a_layernorm.weight", q_lora_rank_);
    q_b_ = loader.matrix(prefix + "q_b_proj.weight", config.query_dim(), q_lora_rank_);
  }
  kv_a_ = loader.matrix(prefix + "kv_a_proj_with_mqa.weight", config.latent_row_dim(), input_dim);
  kv_a_bias_ = bias("kv_a_proj_with_mqa.bias", config.latent_row_dim());
  kv_a_norm_ = loader.vector(prefix + "kv_a_layernorm.weight", latent_dim_);
  o_proj_ =
      loader.matrix(prefix + "o_proj.weight", config.hidden_dim, int64_t{head_count_} * value_dim_);
  o_bias_ = bias("o_proj.bias", config.hidden_dim);

  // kv_b_proj is head-major: n key rows, then v value rows, per head.
  const int64_t rows_per_head = nope_dim_ + value_dim_;
  const HostTensor kv_b =
      loader.tensor(prefix + "kv_b_proj.weight", {head_count_ * rows_per_head, latent_dim_});
  const auto rows_of = [&](int64_t head, int64_t row) {
    return kv_b.data.data() + (head * rows_per_head + row) * latent_dim_ * size_bytes(kv_b.dtype);
  };
  // One kind after the other: the heads of a product are then neighbours in memory.
  for (int head = 0; head < head_count_; ++head)
    w_uk_.push_back(
        loader.pack({rows_of(head, 0), kv_b.dtype, nope_dim_, latent_dim_, latent_dim_}));
  for (int head = 0; head < head_count_; ++head)
    w_uk_t_.push_back(
        loader.pack({rows_of(head, 0), kv_b.dtype, latent_dim_, nope_dim_, latent_dim_, true}));
  for (int head = 0; head < head_count_; ++head)
    w_uv_.push_back(
        loader.pack({rows_of(head, nope_dim_), kv_b.dtype, value_dim_, latent_dim_, latent_dim_}));
}

void MlaAttention::forward(Pass& pass, const MatrixView& x, const RowNorm& norm,
                           const LatentCache& cache, const MatrixView& h) const {
  Arena::Scope scope(pass.arena);
  KernelSet& kernels = pass.kernels;
  const MatrixView q = pass.f32(int64_t{head_count_} * (nope_dim_ + rope_dim_));
  const MatrixView kv = pass.f32(latent_dim_ + rope_dim_);
  const MatrixView q_a = q_proj_ ? q : pass.f32(q_lora_rank_);
  const RowProduct projections[] = {
      {q_proj_ ? q_proj_.get() : q_a_.get(), q_a_bias_.as<float>(), q_a},
      {kv_a_.get(), kv_a_bias_.as<float>(), kv}};
  kernels.project(x, norm, projections);
  if (!q_proj_) {
    const RowNorm q_a_norm = {q_a_norm_.as<float>(), latent_eps_, pass.act(q_lora_rank_)};
    const RowProduct query[] = {{q_b_.get(), nullptr, q}};
    kernels.project(q_a, q_a_norm, query);
  }

  if (pass.path == AttentionPath::kAbsorbed)
    attend_absorbed(pass, q, kv, cache, h);
  else
    attend_expanded(pass, q, kv, cache, h);
}

void MlaAttention::attend_absorbed(Pass& pass, const MatrixView& q, const MatrixView& kv,
                                   const LatentCache& cache, const MatrixView& out) const {
  const DType query_type = pass.kernels.latent_query_dtype(cache, head_count_);
  const DType out_type = query_type == DType::kBF16 ? DType::kBF16 : pass.act_dtype();
  const MatrixView latent_query = scratch_matrix(pass.arena, query_type, pass.row_count(),
                                                 int64_t{head_count_} * (latent_dim_ + rope_dim_));
  const MatrixView latent_out =
      scratch_matrix(pass.arena, out_type, pass.row_count(), int64_t{head_count_} * latent_dim_);
  pass.kernels.latent_inputs(q, kv,
                             {.head_count = head_count_,
                              .nope_dim = nope_dim_,
                              .w_uk_t = w_uk_t_,
                              .norm_weight = kv_a_norm_.as<float>(),
                              .norm_eps = latent_eps_,
                              .rope = pass.rope,
                              .positions = pass.positions,
                              .slots = pass.slots,
                              .row_scale = pass.query_scale},
                             cache, latent_query);
  pass.kernels.latent_attention(latent_query, head_count_, softmax_scale_, pass.sequences, cache,
                                latent_out);
  pass.kernels.project_values(latent_out, w_uv_, pass.act(int64_t{head_count_} * value_dim_),
                              residual_scale_, {o_proj_.get(), o_bias_.as<float>(), out});
}

void MlaAttention::attend_expanded(Pass& pass, const MatrixView& q, const MatrixView& kv,
                                   const LatentCache& cache, const MatrixView& out) const {
  KernelSet& kernels = pass.kernels;
  kernels.rotate_query(q, head_count_, pass.rope, pass.positions, pass.query_scale);
  kernels.store_latent(kv, kv_a_norm_.as<float>(), latent_eps_, pass.rope, pass.positions,
                       pass.slots, cache);
  const int64_t value_cols = int64_t{head_count_} * value_dim_;
  const MatrixView head_values = pass.act(value_cols);
  for (size_t index = 0; index < pass.sequences.size(); ++index) {
    const SequenceRows& sequence = pass.sequences[index];
    if (sequence.row_count == 0 || sequence.kv_end == 0) continue;
    Arena::Scope scope(pass.arena);
    const int64_t rows = sequence.row_count;
    const int64_t prefix_len = sequence.kv_end - rows;
    int64_t largest_chunk = rows;
    for (const PrefixPart& prefix : pass.prefix_parts)
      if (prefix.sequence == static_cast<int32_t>(index))
        largest_chunk = std::max<int64_t>(largest_chunk, prefix.key_count);
    const auto f32 = [&](int64_t row_count, int64_t cols) {
      return scratch_matrix(pass.arena, DType::kF32, row_count, cols);
    };
    const MatrixView k_nope = f32(largest_chunk, int64_t{head_count_} * nope_dim_);
    const MatrixView k_rope = f32(largest_chunk, rope_dim_);
    const MatrixView value = f32(largest_chunk, value_cols);
    const MatrixView result = f32(rows, value_cols);
    const MatrixView lse = f32(rows, head_count_);
    const MatrixView rows_q = row_range(q, sequence.row_begin, rows);
    const auto attend = [&](int64_t key_begin, int64_t keys, bool causal, const MatrixView& to,
                            const MatrixView& to_lse) {
      kernels.expand_latent(sequence, key_begin, cache, w_uk_, w_uv_, row_range(k_nope, 0, keys),
                            row_range(k_rope, 0, keys), row_range(value, 0, keys));
      kernels.expanded_attention(rows_q, head_count_, softmax_scale_, causal,
                                 {.k_nope = static_cast<float*>(k_nope.data),
                                  .k_rope = static_cast<float*>(k_rope.data),
                                  .value = static_cast<float*>(value.data),
                                  .key_count = keys,
                                  .rope_dim = rope_dim_,
                                  .exact = pass.act_dtype() == DType::kF32},
                                 to, to_lse);
    };
    attend(prefix_len, rows, true, result, lse);
    if (prefix_len > 0) {
      const MatrixView part = f32(rows, value_cols);
      const MatrixView part_lse = f32(rows, head_count_);
      int64_t attended = 0;
      for (const PrefixPart& prefix : pass.prefix_parts) {
        if (prefix.sequence != static_cast<int32_t>(index)) continue;
        attend(prefix.key_begin, prefix.key_count, false, part, part_lse);
        kernels.merge_attention(part, part_lse, result, lse);
        attended += prefix.key_count;
      }
      FORESAIL_CHECK(attended == prefix_len, "the plan covers {} of {} cached keys", attended,
                     prefix_len);
    }
    kernels.convert(result, row_range(head_values, sequence.row_begin, rows));
  }
  kernels.linear(head_values, *o_proj_, o_bias_.as<float>(), residual_scale_, true, out);
}

}  // namespace foresail
