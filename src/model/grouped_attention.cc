#include "model/grouped_attention.h"

#include <cmath>

namespace foresail {
GroupedAttention::GroupedAttention(const DraftConfig& config, WeightLoader& loader,
                                   const std::string& prefix, int64_t input_dim)
    : head_count_(static_cast<int>(config.mla.head_count)),
      kv_head_count_(static_cast<int>(config.kv_head_count)),
      head_dim_(static_cast<int>(config.head_dim)) {
  const int64_t query_dim = int64_t{head_count_} * head_dim_;
  const int64_t kv_dim = int64_t{kv_head_count_} * head_dim_;
  q_proj_ = loader.matrix(prefix + "q_proj.weight", query_dim, input_dim);
  k_proj_ = loader.matrix(prefix + "k_proj.weight", kv_dim, input_dim);
  v_proj_ = loader.matrix(prefix + "v_proj.weight", kv_dim, input_dim);
  o_proj_ = loader.matrix(prefix + "o_proj.weight", config.mla.hidden_dim, query_dim);
}

void GroupedAttention::forward(Pass& pass, const MatrixView& x, std::span<const LatentCache> caches,
                               const MatrixView& y) const {
  Arena::Scope scope(pass.arena);
  KernelSet& kernels = pass.kernels;
  const int64_t rows = pass.row_count();
  const MatrixView q = pass.f32(int64_t{head_count_} * head_dim_);
  const MatrixView k = pass.f32(int64_t{kv_head_count_} * head_dim_);
  const MatrixView v = pass.f32(int64_t{kv_head_count_} * head_dim_);
  kernels.linear(x, *q_proj_, nullptr, 1.0f, false, q);
  kernels.linear(x, *k_proj_, nullptr, 1.0f, false, k);
  kernels.linear(x, *v_proj_, nullptr, 1.0f, false, v);
  kernels.rotate_query(q, head_count_, pass.rope, pass.positions, nullptr);
  kernels.rotate_query(k, kv_head_count_, pass.rope, pass.positions, nullptr);

  const int group = head_count_ / kv_head_count_;
  const MatrixView kv_row = pass.f32(2 * head_dim_);
  const MatrixView padded_q = pass.f32(int64_t{group} * 2 * head_dim_);
  const MatrixView attended = pass.act(int64_t{head_count_} * head_dim_);
  kernels.memory().zero(padded_q.data, rows * padded_q.cols * sizeof(float));
  for (int kv_head = 0; kv_head < kv_head_count_; ++kv_head) {
    kernels.convert(column_range(v, kv_head * head_dim_, head_dim_),
                    column_range(kv_row, 0, head_dim_));
    kernels.convert(column_range(k, kv_head * head_dim_, head_dim_),
                    column_range(kv_row, head_dim_, head_dim_));
    kernels.store_rows(kv_row, pass.slots, caches[kv_head]);
    for (int head = 0; head < group; ++head)
      kernels.convert(column_range(q, (kv_head * group + head) * head_dim_, head_dim_),
                      column_range(padded_q, (2 * head + 1) * head_dim_, head_dim_));
    kernels.latent_attention(
        padded_q, group, 1.0f / std::sqrt(static_cast<float>(head_dim_)), pass.sequences,
        caches[kv_head], column_range(attended, kv_head * group * head_dim_, group * head_dim_));
  }
  kernels.linear(attended, *o_proj_, nullptr, 1.0f, true, y);
}

std::vector<CacheShape> grouped_cache_shapes(const DraftConfig& config) {
  const int dim = static_cast<int>(config.head_dim);
  return std::vector<CacheShape>(config.kv_head_count, {dim, dim});
}

}  // namespace foresail
