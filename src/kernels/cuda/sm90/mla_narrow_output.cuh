// The end of a segment in the kernels whose rows are the N side of the products: 256 threads hold
// O^T as accumulators, 256 latent dims a warpgroup.
#pragma once

#include "kernels/cuda/sm90/mla_merge.cuh"

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
// 2 * half and 2 * half + 1 of the four of 64 latent dims. kInterleaved: rows r and r + 8 of a
// product are neighbouring dims, not 8 apart.
template <int N, bool kInterleavedDims>
struct NarrowPieces {
  static constexpr bool kInterleaved = kInterleavedDims;
  static constexpr int kCount = N / 8 * 16;
  static constexpr int kLaneDims = kInterleaved ? 4 : 2;
  static __device__ __forceinline__ int first_row(int piece) { return piece / 16 * 8; }
  static __device__ __forceinline__ int first_dim(int piece) {
    return piece % 8 / 4 * 256 + piece / 8 % 2 * 128 + piece % 4 * 16;
  }
  static __device__ __forceinline__ int pair_dim(int i) {
    return i / 2 * 64 + i % 2 * (kInterleaved ? 2 : 8);
  }
  // Pairs lie [4][32 lanes]: a merge of many parts can deal out the four to different warps.
  static constexpr bool kSplits = true;
  template <int kPairs>
  static __device__ __forceinline__ void load(const PartialPiece* from, int first_pair,
                                              LanePart<kPairs>* part) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      part->pairs[i] = __ldcg(&from->pairs[(first_pair + i) * 32 + lane]);
    }
    part->log_sum = __ldcg(&from->log_sum[lane / 4]);
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

__device__ __forceinline__ void note_shared_request(uint8_t* list, uint8_t* count,
                                                    const Segment& segment) {
  if (segment.whole || threadIdx.x != 0) return;
  int* noted = reinterpret_cast<int*>(count);
  reinterpret_cast<SharedRequest*>(list)[*noted] = {segment.request, segment.first_unit,
                                                    segment.units};
  ++*noted;
}

// Row sums over lanes and warps, then the output, or this block's part of it. sum: of this thread's
// keys; maximum: base-2, of all. reduce: [8 warps][N] in shared memory, free for all since the
// last barrier.
template <typename Pieces, int N>
__device__ __forceinline__ void finish_segment(const KernelParams& p, const PartSet& set,
                                               const Walker& walker, const Segment& segment,
                                               const RowRange& rows, int warp, float* reduce,
                                               const float (&sum)[N / 8][2],
                                               const float (&maximum)[N / 8][2],
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
  float inverse[kBlocks][2], log_sum[kBlocks][2];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int column = b * 8 + 2 * (lane % 4);
    float2 total{0.f, 0.f};
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const float2 part = *reinterpret_cast<const float2*>(reduce + w * N + column);
      total = {total.x + part.x, total.y + part.y};
    }
    const bool none_x = !(total.x > 0.f), none_y = !(total.y > 0.f);
    inverse[b][0] = none_x ? 0.f : __fdividef(p.cache_scale, total.x);
    inverse[b][1] = none_y ? 0.f : __fdividef(p.cache_scale, total.y);
    log_sum[b][0] = none_x ? kNegativeInfinity : maximum[b][0] + __log2f(total.x);
    log_sum[b][1] = none_y ? kNegativeInfinity : maximum[b][1] + __log2f(total.y);
  }
  const int slot = partial_slot(set.block, segment.first_unit, walker.total, walker.blocks);
  PartialPiece* to = set.template piece<Pieces>(slot, warp);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int row = b * 8 + lane / 4;
    __nv_bfloat16* output = p.output + static_cast<int64_t>(rows.first + row) * kLatent +
                            Pieces::first_dim(warp) + Pieces::kLaneDims * (lane % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* o = &out[half * 2 + i / 2][b * 4 + i % 2 * 2];
        const float x = o[0] * inverse[b][0], y = o[1] * inverse[b][1];
        pairs[i] =
            ptx::transpose_matrix(segment.whole ? ptx::pack_bf16(x, y) : ptx::pack_half(x, y));
      }
      if constexpr (Pieces::kInterleaved) {  // even dims and odd dims to neighbours
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const uint32_t even = pairs[i], odd = pairs[i + 1];
          pairs[i] = __byte_perm(even, odd, 0x5410);
          pairs[i + 1] = __byte_perm(even, odd, 0x7632);
        }
      }
      if (!segment.whole) {
        PartialPiece* piece = &to[(b * 2 + half) * 8];
#pragma unroll
        for (int i = 0; i < 4; ++i) __stcg(&piece->pairs[i * 32 + lane], pairs[i]);
        // Lanes 0-3 know the sums of two rows each.
        if (lane < 4) {
          __stcg(reinterpret_cast<float2*>(piece->log_sum) + lane,
                 float2{log_sum[b][0], log_sum[b][1]});
        }
      } else if (row < rows.count) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          *reinterpret_cast<uint32_t*>(output + half * 128 + Pieces::pair_dim(i)) = pairs[i];
        }
      }
    }
    if (segment.whole && p.lse != nullptr && warp == 0 && lane < 4) {
      write_lse(p, rows, b * 8 + 2 * lane, log_sum[b][0]);
      write_lse(p, rows, b * 8 + 2 * lane + 1, log_sum[b][1]);
    }
  }
  if (segment.whole) return;
  ptx::barrier_sync(kBarConsumers, kConsumerThreads);
  // Releases the stores of all consumer threads: the barrier ordered them before this.
  if (threadIdx.x == 0) ptx::add_release(set.counters + segment.request, 1);
}

// Merges the shared requests that this block noted. All tiles are consumed: their memory is free.
template <typename Pieces>
__device__ __forceinline__ void merge_requests(const KernelParams& p, const PartSet& set,
                                               const Walker& walker, int warp, uint8_t* scratch,
                                               const uint8_t* list, const uint8_t* count) {
  const SharedRequest* requests = reinterpret_cast<const SharedRequest*>(list);
  const int merges = *reinterpret_cast<const int*>(count);
#pragma unroll 1
  for (int i = 0; i < merges; ++i) {
    merge_request<Pieces, 17>(p, set, walker.total, walker.blocks, requests[i],
                              RowRange(p, requests[i].request), warp, scratch);
  }
}

}  // namespace foresail::cuda::mla
