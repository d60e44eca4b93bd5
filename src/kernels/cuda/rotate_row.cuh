// What latent_inputs (latent_inputs.h) does that is no product, row by row.
#pragma once

#include "kernels/cuda/latent_inputs.h"
#include "kernels/cuda/rows.cuh"

namespace foresail::cuda {

// A number of the cache times this is its code.
inline float inverse_scale(const Cache& cache) {
  return cache.element == Element::kF8E4M3 ? 1.0f / cache.scale : 1.0f;
}

// The rotated parts of a row's queries, and its row of the cache, by a block. `scratch`: kSumWarps.
template <int kThreads, typename Out, typename T>
__device__ __forceinline__ void rotate_row(const LatentInputsArgs& args, int64_t row,
                                           float inverse_scale, float* scratch) {
  const int64_t position = args.positions[row];
  const float scale = args.row_scale != nullptr ? args.row_scale[row] : 1.0f;
  const int pairs = args.rope.dim / 2;
  for (int i = threadIdx.x; i < args.heads * pairs; i += kThreads) {
    const int head = i / pairs;
    const Turn turn = turn_of(args.rope, position, i % pairs);
    const float* from = args.q + row * args.q_stride +
                        int64_t{head} * (args.nope_dim + args.rope.dim) + args.nope_dim;
    const float2 turned = turn.of(from[turn.first], from[turn.second]);
    Out* to = static_cast<Out*>(args.out) + row * args.out_stride +
              int64_t{head} * (args.cache.latent_dim + args.rope.dim) + args.cache.latent_dim;
    store_value(to, turn.first, scale * turned.x);
    store_value(to, turn.second, scale * turned.y);
  }
  const int64_t slot = args.slots[row];
  if (slot < 0) return;
  store_latent_row<kThreads>(
      args.kv + row * args.kv_stride, args.norm_weight, args.norm_eps, args.rope, position,
      static_cast<T*>(args.cache.data) + slot * (args.cache.latent_dim + args.cache.rope_dim),
      args.cache.latent_dim, args.cache.rope_dim, inverse_scale, scratch);
}

// The same where only the call says of what types they are.
template <int kThreads, typename Out>
__device__ __forceinline__ void rotate_row_of(const LatentInputsArgs& args, int64_t row,
                                              float inverse_scale, float* scratch) {
  if (args.cache.element == Element::kF8E4M3)
    rotate_row<kThreads, Out, __nv_fp8_e4m3>(args, row, inverse_scale, scratch);
  else if (args.cache.element == Element::kBF16)
    rotate_row<kThreads, Out, __nv_bfloat16>(args, row, inverse_scale, scratch);
  else
    rotate_row<kThreads, Out, float>(args, row, inverse_scale, scratch);
}
template <int kThreads>
__device__ __forceinline__ void rotate_row_of(const LatentInputsArgs& args, int64_t row,
                                              float inverse_scale, float* scratch) {
  if (args.out_is_bf16)
    rotate_row_of<kThreads, __nv_bfloat16>(args, row, inverse_scale, scratch);
  else
    rotate_row_of<kThreads, float>(args, row, inverse_scale, scratch);
}

}  // namespace foresail::cuda
