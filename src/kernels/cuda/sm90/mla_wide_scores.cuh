// Scores of 64 rows and a tile of 64 keys in the accumulators of a warpgroup, rows as the M side of
// the product: a thread holds row lane / 4 of its warp's 16 at i % 4 < 2, row lane / 4 + 8 at the
// others. What is said of two rows is of these.
#pragma once

#include "kernels/cuda/sm90/mla_merge.cuh"

namespace foresail::cuda::mla {

// Of keys that a row does not see. key: the tile's first; hidden: last keys that a row does not
// see, of the warp's rows.
__device__ __forceinline__ void mask_scores(float (&s)[32], const int* hidden, int key, int key_len,
                                            int key_end) {
  const int lane = threadIdx.x & 31;
  const int limit[2] = {min(key_end, key_len - hidden[lane / 4]),
                        min(key_end, key_len - hidden[lane / 4 + 8])};
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int at = key + i / 4 * 8 + 2 * (lane % 4) + i % 2;
    if (at >= limit[i % 4 / 2]) s[i] = kNegativeInfinity;
  }
}

// Of what this thread holds; largest_of_lanes: of a whole row.
__device__ __forceinline__ void find_largest(const float (&s)[32], float (&largest)[2]) {
  largest[0] = s[0];
  largest[1] = s[2];
#pragma unroll
  for (int i = 1; i < 32; ++i) {
    if (i != 2) largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], s[i]);
  }
}

__device__ __forceinline__ void largest_of_lanes(float (&largest)[2]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(~0u, largest[r], step));
    }
  }
}

__device__ __forceinline__ float sum_of_lanes(float sum) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

// What a reference of weights is subtracted as: a row that has seen no key has none.
__device__ __forceinline__ float offset_of(float reference) {
  return reference == kNegativeInfinity ? 0.f : reference;
}

// From scores to weights relative to a reference. sum: of what this thread holds of a row.
__device__ __forceinline__ void weigh_scores(float (&s)[32], float scale_log2,
                                             const float (&offset)[2], float (&sum)[2]) {
  sum[0] = sum[1] = 0.f;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    s[i] = ptx::exp2_approx(s[i] * scale_log2 - offset[i % 4 / 2]);
    sum[i % 4 / 2] += s[i];
  }
}

// What a row's output is multiplied by, and the base-2 logarithm of its sum of weights.
__device__ __forceinline__ float inverse_of(float sum) {
  return sum > 0.f ? __fdividef(1.f, sum) : 0.f;
}

__device__ __forceinline__ float log_sum_of(float sum, float reference) {
  return sum > 0.f ? reference + __log2f(sum) : kNegativeInfinity;
}

// Value rows of a tile past its `count` keys would multiply a zero weight, but may hold NaN. Their
// scores are masked, so it does not matter whether other warps still read them as keys.
__device__ __forceinline__ void clear_tail(uint8_t* tile, int count, int thread) {
  if (count >= kTile) return;
  // Of the last box; those behind it came as zeros.
  const int pad = (count + kSmallBox - 1) / kSmallBox * kSmallBox - count;
  for (int i = thread; i < pad * 8 * kLatentChunks; i += 128) {
    const int chunk = i / (pad * 8);
    const int rest = i - chunk * pad * 8;
    *reinterpret_cast<uint4*>(tile + chunk * kChunkBytes + count * 128 + rest * 16) =
        uint4{0, 0, 0, 0};
  }
  ptx::fence_proxy_async();
}

}  // namespace foresail::cuda::mla
