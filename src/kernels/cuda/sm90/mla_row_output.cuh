// The end of a segment in the kernel whose output rows are the M side of the values' product: 8
// warps hold O as accumulators, 64 latent dims a warp.
#pragma once

#include "kernels/cuda/sm90/mla_tagged_parts.cuh"

namespace foresail::cuda::mla {

// Pieces of this kernel. Piece ((row block * 2 + half) * 8 + warp): half of a warp's 64 dims.
template <int N>
struct RowPieces {
  static constexpr int kCountLog2 = N == 8 ? 4 : N == 16 ? 5 : 6;
  static constexpr int kCount = 1 << kCountLog2;
  static_assert(kCount == N / 8 * 16);
  static constexpr int kLaneDims = 2;
  static __device__ __forceinline__ int first_row(uint32_t piece) { return piece / 16 * 8; }
  static __device__ __forceinline__ int first_dim(uint32_t piece) {
    return piece % 8 * 64 + piece / 8 % 2 * 32;
  }
  static __device__ __forceinline__ int pair_dim(int i) { return i * 8; }
};

// What a thread needs of a row: it holds values of row lane / 4 of each block of 8 rows.
struct RowTotal {
  float inverse;  // of the sum of weights; 0 if there is none
  float log_sum;  // its base-2 logarithm

  // maximum: what weights are relative to, base 2.
  __device__ __forceinline__ RowTotal(float sum, float maximum) {
    const bool none = !(sum > 0.f);
    inverse = none ? 0.f : ptx::reciprocal(sum);
    log_sum = none ? kNegativeInfinity : maximum + ptx::log2_approx(sum);
  }
};

// Rows b * 8 to b * 8 + 7 of the output of a segment (kWhole), or of this block's part of it. slot:
// where the part lies; value(v, c): this thread's accumulator of dim v * 8 + 2 * (lane % 4) + c of
// its warp.
template <typename Pieces, bool kWhole, typename Value>
__device__ __forceinline__ void write_row_block(const KernelParams& p, const TaggedSet& set,
                                                int slot, const RowRange& rows, int warp, int b,
                                                const RowTotal& total, const Value& value) {
  const int lane = threadIdx.x & 31;
  const int row = b * 8 + lane / 4;
  TaggedPiece* to = set.template piece<Pieces>(slot, warp);
  __nv_bfloat16* output = p.output + static_cast<int64_t>(rows.first + row) * kLatent +
                          Pieces::first_dim(warp) + Pieces::kLaneDims * (lane % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = value(half * 4 + i, 0) * total.inverse;
      const float y = value(half * 4 + i, 1) * total.inverse;
      pairs[i] = kWhole ? ptx::pack_bf16(x, y) : ptx::pack_half(x, y);
    }
    if constexpr (!kWhole) {
      set.store_units(&to[(b * 2 + half) * 8], pairs, total.log_sum);
    } else if (row < rows.count) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint32_t*>(output + half * 32 + Pieces::pair_dim(i)) = pairs[i];
      }
    }
  }
  if (kWhole && p.lse != nullptr && warp == 0 && lane % 4 == 0) {
    write_lse(p, rows, row, total.log_sum);
  }
}

}  // namespace foresail::cuda::mla
