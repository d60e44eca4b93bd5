// Arithmetic of single rows that several kernels share.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/rows.h"

namespace foresail::cuda {

struct Turn {
  float cos, sin;
  int first, second;  // places of the pair in the rotated part
  __device__ __forceinline__ float2 of(float a, float b) const {
    return {__fmaf_rn(a, cos, -__fmul_rn(b, sin)), __fmaf_rn(a, sin, __fmul_rn(b, cos))};
  }
};

__device__ __forceinline__ Turn turn_of(const Rope& rope, int64_t position, int pair) {
  const int half = rope.dim / 2;
  const int64_t at = position * half + pair;
  return {rope.cos[at], rope.sin[at], rope.half_split ? pair : 2 * pair,
          rope.half_split ? pair + half : 2 * pair + 1};
}

// The sum of a row's squares, by a block of kThreads: bit for bit what block_sum() makes of them in
// one of kSumThreads. `scratch`: kSumWarps floats.
constexpr int kSumThreads = 256;
constexpr int kSumWarps = kSumThreads / kWarp;
template <int kThreads>
__device__ __forceinline__ float row_squares(const float* row, int count, float* scratch) {
  __syncthreads();  // scratch may still be read
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int warp = static_cast<int>(threadIdx.x) / kWarp; warp < kSumWarps;
       warp += kThreads / kWarp) {
    float squares = 0.0f;
    for (int i = warp * kWarp + lane; i < count; i += kSumThreads)
      squares = __fmaf_rn(row[i], row[i], squares);
    squares = warp_sum(squares);
    if (lane == 0) scratch[warp] = squares;
  }
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < kSumWarps; ++warp) total += scratch[warp];
  return total;
}

// One row of latent_dim + rope_dim numbers, normed and rotated, into the cache, by a block.
// A row that is no number (whose squares have no finite sum) gets zeros for what is key and value,
// and NaN for what is key alone: who sees it has its NaN from the score, and it does not reach
// those beside them who weigh it with zero. So no attention kernel has to look for it.
template <int kThreads, typename T>
__device__ __forceinline__ void store_latent_row(const float* row, const float* norm_weight,
                                                 float eps, const Rope& rope, int64_t position,
                                                 T* to, int latent_dim, int rope_dim,
                                                 float inverse_scale, float* scratch) {
  const float total = row_squares<kThreads>(row, latent_dim, scratch);
  const float factor = norm_factor(total, latent_dim, eps);
  const bool spoilt = rope_dim > 0 && !isfinite(total);
  for (int i = threadIdx.x; i < latent_dim; i += kThreads)
    store_value(to, i, spoilt ? 0.0f : row[i] * factor * norm_weight[i] * inverse_scale);
  for (int pair = threadIdx.x; pair < rope_dim / 2; pair += kThreads) {
    const Turn turn = turn_of(rope, position, pair);
    float2 turned = turn.of(row[latent_dim + turn.first], row[latent_dim + turn.second]);
    if (spoilt) turned = {NAN, NAN};
    store_value(to, latent_dim + turn.first, turned.x * inverse_scale);
    store_value(to, latent_dim + turn.second, turned.y * inverse_scale);
  }
}

}  // namespace foresail::cuda
