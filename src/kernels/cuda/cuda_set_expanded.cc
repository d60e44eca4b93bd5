// Expanded attention of the CUDA set.
#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "kernels/cuda/cuda_set.h"
#include "kernels/cuda/expanded.h"
#include "kernels/cuda/sm90/expanded_attention.h"

namespace foresail {

void CudaKernels::expand_latent(const SequenceRows& sequence, int64_t key_begin,
                                const LatentCache& cache, std::span<const MatrixPtr> w_uk,
                                std::span<const MatrixPtr> w_uv, const MatrixView& k_nope,
                                const MatrixView& k_rope, const MatrixView& value) {
  const int64_t index = &sequence - inputs_.sequences.data();
  FORESAIL_CHECK(index >= 0 && index < static_cast<int64_t>(inputs_.sequences.size()) &&
                     cache.page_size == inputs_.page_size,
                 "the sequence or page size is not of begin_pass");
  // Numbers of a bf16 cache are one bf16 term each.
  const bool bf16 = cache.dtype == DType::kBF16;
  const int64_t keys = k_rope.rows;
  const cuda::Rows latent = {
      scratch(Scratch::kLatents, static_cast<size_t>(keys * cache.latent_dim) * (bf16 ? 2 : 4)),
      bf16 ? cuda::Element::kBF16 : cuda::Element::kF32, keys, cache.latent_dim, cache.latent_dim};
  cuda::gather_latent(stream(), cache_view(cache), word(pass_.tables) + index * pass_.table_width,
                      key_begin, latent, rows_of(k_rope));
  const auto project = [&](std::span<const MatrixPtr> weights, const MatrixView& out) {
    multiply({.weights = head_table(weights),
              .groups = static_cast<int>(weights.size()),
              .n_out = weights[0]->n_out(),
              .n_in = weights[0]->n_in(),
              .rows = keys,
              .x = latent.data,
              .x_is_bf16 = bf16,
              .x_stride = latent.stride,
              .out = out.data,
              .out_stride = out.stride,
              .out_group = weights[0]->n_out()});
  };
  project(w_uk, k_nope);
  project(w_uv, value);
  check("expand_latent");
}

void CudaKernels::expanded_attention(const MatrixView& q, int head_count, float softmax_scale,
                                     bool causal, const ExpandedKeys& keys, const MatrixView& out,
                                     const MatrixView& lse) {
  const auto query_dim = static_cast<int>(q.cols / head_count);
  const auto value_dim = static_cast<int>(out.cols / head_count);
  if (std::max(query_dim, value_dim) > cuda::kMostExpandedDim)
    throw_error(ErrorCode::kUsage,
                "CUDA: expanded attention takes heads of up to {} numbers, the model's have {}: "
                "choose --attention-path absorbed",
                cuda::kMostExpandedDim, std::max(query_dim, value_dim));
  const cuda::ExpandedArgs args = {.q = static_cast<const float*>(q.data),
                                   .q_stride = q.stride,
                                   .rows = q.rows,
                                   .heads = head_count,
                                   .nope_dim = query_dim - keys.rope_dim,
                                   .rope_dim = keys.rope_dim,
                                   .value_dim = value_dim,
                                   .softmax_scale = softmax_scale,
                                   .causal = causal,
                                   .k_nope = keys.k_nope,
                                   .k_rope = keys.k_rope,
                                   .value = keys.value,
                                   .key_count = keys.key_count,
                                   .exact = keys.exact,
                                   .out = static_cast<float*>(out.data),
                                   .out_stride = out.stride,
                                   .lse = static_cast<float*>(lse.data),
                                   .lse_stride = lse.stride};
  if (has_sm90_ && cuda::fits_tiled_attention(args))
    cuda::tiled_attention(stream(), args,
                          scratch(Scratch::kKeyTiles, cuda::tiled_attention_bytes(args)));
  else
    cuda::expanded_attention(stream(), args);
  check("expanded_attention");
}

uint64_t cuda_expanded_bytes(int64_t keys, int heads, int nope_dim, int rope_dim, int value_dim) {
  const cuda::ExpandedArgs args = {.heads = heads,
                                   .nope_dim = nope_dim,
                                   .rope_dim = rope_dim,
                                   .value_dim = value_dim,
                                   .softmax_scale = 1.0f,
                                   .key_count = keys};
  return cuda::fits_tiled_attention(args) ? grown_scratch(cuda::tiled_attention_bytes(args)) : 0;
}

void CudaKernels::merge_attention(const MatrixView& other, const MatrixView& other_lse,
                                  const MatrixView& out, const MatrixView& lse) {
  cuda::merge_attention(stream(), rows_of(other), rows_of(other_lse), rows_of(out), rows_of(lse));
  check("merge_attention");
}

}  // namespace foresail
