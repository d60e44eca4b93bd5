// The end of a segment in the kernels whose rows are the N side of the products: 256 threads hold
// O^T as accumulators, 256 latent dims a warpgroup.
#pragma once

#include "kernels/cuda/sm90/mla_tagged_parts.cuh"

namespace foresail::cuda::mla {

// Combines kCount values over the eight lanes that hold the same columns. The values take turns, so
// that the shuffles of one hide the latency of another's: the compiler keeps shuffles in order.
template <int kCount, typename Combine>
__device__ __forceinline__ void combine_lanes(float (&values)[kCount], Combine combine) {
#pragma unroll
  for (int step = 4; step <= 16; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = combine(values[i], __shfl_xor_sync(~0u, values[i], step));
    }
  }
}

// Pieces of these kernels. Piece ((row block * 2 + half) * 8 + warp): a warp's fragments of blocks
// 2 * half and 2 * half + 1 of the four of 64 latent dims. Rows r and r + 8 of a product are
// neighbouring dims.
template <int N>
struct NarrowPieces {
  static constexpr int kCountLog2 = N == 8 ? 4 : N == 16 ? 5 : N == 32 ? 6 : 7;
  static constexpr int kCount = 1 << kCountLog2;
  static_assert(kCount == N / 8 * 16);
  static constexpr int kLaneDims = 4;
  static __device__ __forceinline__ int first_row(uint32_t piece) { return piece / 16 * 8; }
  static __device__ __forceinline__ int first_dim(uint32_t piece) {
    return piece % 8 / 4 * 256 + piece / 8 % 2 * 128 + piece % 4 * 16;
  }
  static __device__ __forceinline__ int pair_dim(int i) { return i / 2 * 64 + i % 2 * 2; }
  template <int kPairs>
  static __device__ __forceinline__ void load(const PartialPiece* from, int,
                                              LanePart<kPairs>* part) {
    load_pairs(from, part->pairs);
    part->log_sum = __ldcg(&from->log_sum[(threadIdx.x & 31) / 4]);
  }
};

template <int N>
__device__ __forceinline__ void load_maxima(const float* from, float (&maximum)[N / 8][2]) {
#pragma unroll
  for (int b = 0; b < N / 8; ++b) {
    const float2 pair = *reinterpret_cast<const float2*>(from + b * 8 + 2 * (threadIdx.x % 4));
    maximum[b][0] = pair.x;
    maximum[b][1] = pair.y;
  }
}

// What a thread needs of the rows that its accumulators are of: of two neighbours each.
struct RowTotals {
  float inverse[2];  // what an accumulator is to be multiplied by
  float log_sum[2];  // base-2 logarithm of the sum of weights
};

// The output of a segment (kWhole), or this block's part of it. slot: where the part lies;
// totals(b): of rows b * 8 + 2 * (lane % 4) and the next.
template <typename Pieces, int N, bool kWhole, typename Set, typename Totals>
__device__ __forceinline__ void write_rows(const KernelParams& p, const Set& set, int slot,
                                           const RowRange& rows, int warp, const Totals& totals,
                                           float (&out)[4][N / 2]) {
  const int lane = threadIdx.x & 31;
  auto* to = set.template piece<Pieces>(slot, warp);
#pragma unroll
  for (int b = 0; b < N / 8; ++b) {
    const RowTotals total = totals(b);
    const int row = b * 8 + lane / 4;
    __nv_bfloat16* output = p.output + static_cast<int64_t>(rows.first + row) * kLatent +
                            Pieces::first_dim(warp) + Pieces::kLaneDims * (lane % 4);
    // All exchanges between lanes before the first use of one: they take turns with their latency.
    uint32_t pairs[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* o = &out[i / 2][b * 4 + i % 2 * 2];
      const float x = o[0] * total.inverse[0], y = o[1] * total.inverse[1];
      pairs[i / 4][i % 4] =
          ptx::transpose_matrix(kWhole ? ptx::pack_bf16(x, y) : ptx::pack_half(x, y));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Even dims and odd dims to neighbours.
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t even = pairs[half][i], odd = pairs[half][i + 1];
        pairs[half][i] = __byte_perm(even, odd, 0x5410);
        pairs[half][i + 1] = __byte_perm(even, odd, 0x7632);
      }
      if constexpr (!kWhole) {
        set.store(&to[(b * 2 + half) * 8], pairs[half], total.log_sum);
      } else if (row < rows.count) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          *reinterpret_cast<uint32_t*>(output + half * 128 + Pieces::pair_dim(i)) = pairs[half][i];
        }
      }
    }
    if (kWhole && p.lse != nullptr && warp == 0 && lane < 4) {
      write_lse(p, rows, b * 8 + 2 * lane, total.log_sum[0]);
      write_lse(p, rows, b * 8 + 2 * lane + 1, total.log_sum[1]);
    }
  }
}

template <typename Pieces, int N, typename Set, typename Totals>
__device__ __forceinline__ void write_segment(const KernelParams& p, const Set& set, int slot,
                                              bool whole, const RowRange& rows, int warp,
                                              const Totals& totals, float (&out)[4][N / 2]) {
  if (__shfl_sync(~0u, whole, 0)) {  // the exchanges between lanes need whole warps
    write_rows<Pieces, N, true>(p, set, slot, rows, warp, totals, out);
  } else {
    write_rows<Pieces, N, false>(p, set, slot, rows, warp, totals, out);
  }
}

// Row sums over lanes and warps, then the output, or this block's part of it. sum: of this thread's
// keys; maximum: base-2, of all; value_scale: value of an accumulator of 1. reduce: [8 warps][N] in
// shared memory, free for all since the last barrier.
template <typename Pieces, int N, typename Params>
__device__ __forceinline__ void finish_segment(const Params& p, const TaggedSet& set,
                                               const Segment& segment, const RowRange& rows,
                                               int warp, float* reduce,
                                               const float (&sum)[N / 8][2],
                                               const float (&maximum)[N / 8][2], float value_scale,
                                               float (&out)[4][N / 2]) {
  constexpr int kBlocks = N / 8;
  const int lane = threadIdx.x & 31;
  float totals[2 * kBlocks];
#pragma unroll
  for (int i = 0; i < 2 * kBlocks; ++i) totals[i] = sum[i / 2][i % 2];
  combine_lanes(totals, [](float x, float y) { return x + y; });
  if (lane < 4) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      *reinterpret_cast<float2*>(reduce + warp * N + b * 8 + 2 * lane) = {totals[2 * b],
                                                                          totals[2 * b + 1]};
    }
  }
  ptx::barrier_sync(kBarConsumers, kConsumerThreads);
  // All sums before the first store: it would hold up the reads of the later ones.
  RowTotals totals_of[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int column = b * 8 + 2 * (lane % 4);
    float total[2] = {0.f, 0.f};
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const float2 part = *reinterpret_cast<const float2*>(reduce + w * N + column);
      total[0] += part.x;
      total[1] += part.y;
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const bool none = !(total[c] > 0.f);
      totals_of[b].inverse[c] = none ? 0.f : value_scale * ptx::reciprocal(total[c]);
      totals_of[b].log_sum[c] =
          none ? kNegativeInfinity : maximum[b][c] + ptx::log2_approx(total[c]);
    }
  }
  write_segment<Pieces, N>(
      p, set, set.slot(p, segment), segment.whole, rows, warp, [&](int b) { return totals_of[b]; },
      out);
}

}  // namespace foresail::cuda::mla
