// Output of the MLA decode kernel: the merge of requests that several blocks worked on, by those same
// blocks and in the same launch. A block's part of a request is a set of pieces, one warp's work
// each: 8 values a lane, normalised, float16 (values beyond 65504 saturate).
#pragma once

#include "kernels/cuda/sm90/mla_walker.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mla {

// Eight values of a lane. Values 0 and 2 are of row 0, 1 and 3 of row 1, 4 and 6 of row 2, 5 and 7
// of row 3; which rows of the output these are is the business of `Pieces`.
struct LaneValues {
  float value[8];
  float log_sum[4];  // base-2 logarithm of the sum of weights a row; -infinity: no key

  __device__ __forceinline__ uint4 packed() const {
    return {ptx::pack_half(value[0], value[1]), ptx::pack_half(value[2], value[3]),
            ptx::pack_half(value[4], value[5]), ptx::pack_half(value[6], value[7])};
  }
};

__device__ __forceinline__ void write_lse(const KernelParams& p, const RowRange& rows, int row,
                                          float log_sum) {
  constexpr float kLn2 = 0.6931471805599453f;
  if (row < rows.count) p.lse[rows.first + row] = log_sum * kLn2;
}

// exp2(value - maximum) for a running maximum that may still be -infinity.
__device__ __forceinline__ float weight(float value, float maximum) {
  return maximum == kNegativeInfinity ? 0.f : ptx::exp2_approx(value - maximum);
}

// What one lane holds of one part: packed values and log_sum of its rows.
struct LanePart {
  uint4 packed;
  float log_sum[4];
};

// Merges `count` parts, kAtOnce of them in flight. load(i, part) reads part i.
template <int kAtOnce, typename Load>
__device__ __forceinline__ LaneValues merge_parts(int count, const Load& load) {
  LaneValues merged;
  float maximum[4], sum[4];
#pragma unroll
  for (int i = 0; i < 8; ++i) merged.value[i] = 0.f;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    maximum[r] = kNegativeInfinity;
    sum[r] = 0.f;
  }
  for (int first = 0; first < count; first += kAtOnce) {
    LanePart part[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j < count) {
        load(first + j, &part[j]);
      } else {
        part[j].packed = {0, 0, 0, 0};
#pragma unroll
        for (int r = 0; r < 4; ++r) part[j].log_sum[r] = kNegativeInfinity;
      }
    }
    float offset[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float raised = maximum[r];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) raised = fmaxf(raised, part[j].log_sum[r]);
      const float keep = weight(maximum[r], raised);
      maximum[r] = raised;
      offset[r] = raised == kNegativeInfinity ? 0.f : raised;
      sum[r] *= keep;
      const int at = r / 2 * 4 + r % 2;
      merged.value[at] *= keep;
      merged.value[at + 2] *= keep;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      float w[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        w[r] = ptx::exp2_approx(part[j].log_sum[r] - offset[r]);
        sum[r] += w[r];
      }
      const uint32_t* packed = &part[j].packed.x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 v = ptx::unpack_half(packed[i]);
        merged.value[2 * i] = fmaf(v.x, w[i / 2 * 2], merged.value[2 * i]);
        merged.value[2 * i + 1] = fmaf(v.y, w[i / 2 * 2 + 1], merged.value[2 * i + 1]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float inverse = sum[r] > 0.f ? 1.f / sum[r] : 0.f;
    const int at = r / 2 * 4 + r % 2;
    merged.value[at] *= inverse;
    merged.value[at + 2] *= inverse;
    merged.log_sum[r] = sum[r] > 0.f ? maximum[r] + __log2f(sum[r]) : kNegativeInfinity;
  }
  return merged;
}

// The kernel for few rows: a piece is 16 rows x 16 latent dims (8 rows x 32 if N is 8), two
// fragments of O^T: piece (pair * 8 + warp) holds fragments 2 * pair and 2 * pair + 1 of the order
// [4 blocks of 64 dims][N / 8 blocks of rows].
template <int N>
struct NarrowPieces {
  static constexpr int kCount = N / 8 * 16;
  static constexpr int kPairs = kCount / 8;
  static constexpr int kRowPairs = N > 8 ? N / 16 : 1;

  // First row of a piece, and the row within it that entry r of LaneValues::log_sum is about.
  static __device__ __forceinline__ int first_row(int piece) {
    return piece / 8 % kRowPairs * 16;
  }
  static __device__ __forceinline__ int row(int r, int lane) {
    return (N > 8 ? r / 2 * 8 : 0) + 2 * (lane % 4) + r % 2;
  }

  static __device__ __forceinline__ void write(const KernelParams& p, const RowRange& rows,
                                               int piece, const LaneValues& lane_values) {
    const int lane = threadIdx.x & 31;
    const int warp = piece % 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* v = lane_values.value + 4 * half;
      const uint32_t low = ptx::transpose_matrix(ptx::pack_bf16(v[0], v[1]));
      const uint32_t high = ptx::transpose_matrix(ptx::pack_bf16(v[2], v[3]));
      const int fragment = piece / 8 * 2 + half;
      const int row = fragment % (N / 8) * 8 + lane / 4;
      const int dim = 256 * (warp / 4) + 64 * (fragment / (N / 8)) + 16 * (warp % 4);
      if (row < rows.count) {
        __nv_bfloat16* out =
            p.output + static_cast<int64_t>(rows.first + row) * kLatent + dim + 2 * (lane % 4);
        *reinterpret_cast<uint32_t*>(out) = low;
        *reinterpret_cast<uint32_t*>(out + 8) = high;
      }
    }
    // The pieces of the first dims carry the log-sum-exp of their rows.
    if (p.lse != nullptr && warp == 0 && piece / 8 < kRowPairs && lane < 4) {
#pragma unroll
      for (int r = 0; r < (N > 8 ? 4 : 2); ++r) {
        write_lse(p, rows, first_row(piece) + row(r, lane), lane_values.log_sum[r]);
      }
    }
  }
};

template <typename Pieces>
__device__ __forceinline__ PartialPiece* partial_piece(const KernelParams& p, int slot, int piece) {
  return p.partials + static_cast<int64_t>(slot) * Pieces::kCount + piece;
}

template <typename Pieces>
__device__ __forceinline__ void store_piece(const KernelParams& p, int slot, int piece,
                                            const LaneValues& values) {
  const int lane = threadIdx.x & 31;
  PartialPiece* to = partial_piece<Pieces>(p, slot, piece);
  __stcg(&to->values[lane], values.packed());
#pragma unroll
  for (int r = 0; r < 4; ++r) __stcg(&to->log_sum[Pieces::row(r, lane)], values.log_sum[r]);
}

// Every block that worked on a shared request merges its part of the output: the pieces are dealt
// out over the blocks. Called by the 256 computing threads once per shared request, after all of the
// block's own parts are published, so no block ever waits for one that waits for it; all blocks are
// resident (MlaLaunch). warp: 0-7. scratch: 16 KB of shared memory.
template <typename Pieces, int kAtOnce>
__device__ __forceinline__ void merge_request(const KernelParams& p, int total, int blocks,
                                              const SharedRequest& request, int warp,
                                              uint4* scratch) {
  const int lane = threadIdx.x & 31;
  const SplitGroup group = split_group(request.first_unit, request.units, total, blocks);
  const int count = group.block_count;
  const int index = static_cast<int>(blockIdx.x) - group.first_block;
  // Slot of the first block; those of the others are 2 * block.
  const int first_slot = partial_slot(group.first_block, request.first_unit, total, blocks);
  const RowRange rows(p, request.request);
  int* counter = p.counters + request.request;
  if (warp == 0 && lane == 0) {
    while (ptx::load_acquire(counter) < count) {
    }
  }
  ptx::barrier_sync(kBarConsumers, kConsumerThreads);
  int team = 1;  // warps a piece: enough that all warps of the group have work
  while (team < 8 && 2 * team * Pieces::kCount <= count * 8) team *= 2;
  const int teams = 8 / team, member = warp % team;
#pragma unroll 1
  for (int base = index * teams; base < Pieces::kCount; base += count * teams) {
    const int piece = base + warp / team;
    const auto load = [&](int j, LanePart* loaded) {
      const int other = member + j * team;
      const int slot = other == 0 ? first_slot : 2 * (group.first_block + other);
      const PartialPiece* from = partial_piece<Pieces>(p, slot, piece);
      loaded->packed = __ldcg(&from->values[lane]);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        loaded->log_sum[r] = __ldcg(&from->log_sum[Pieces::row(r, lane)]);
      }
    };
    const int parts = (count - member + team - 1) / team;
    LaneValues merged = count <= 4 ? merge_parts<4>(parts, load) : merge_parts<kAtOnce>(parts, load);
    if (team > 1) {
      scratch[(warp * 32 + lane) * 2] = merged.packed();
      float4* sums = reinterpret_cast<float4*>(scratch) + (warp * 32 + lane) * 2 + 1;
      *sums = {merged.log_sum[0], merged.log_sum[1], merged.log_sum[2], merged.log_sum[3]};
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
      if (member == 0) {
        merged = merge_parts<2>(team, [&](int j, LanePart* loaded) {
          const uint4* from = scratch + ((warp + j) * 32 + lane) * 2;
          loaded->packed = from[0];
          const float4 other = *reinterpret_cast<const float4*>(from + 1);
          loaded->log_sum[0] = other.x;
          loaded->log_sum[1] = other.y;
          loaded->log_sum[2] = other.z;
          loaded->log_sum[3] = other.w;
        });
      }
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    }
    if (member == 0) Pieces::write(p, rows, piece, merged);
  }
  // The second half of the count says who has passed the wait; the last one leaves zero behind.
  if (warp == 0 && lane == 0 && atomicAdd(counter, 1) == 2 * count - 1) *counter = 0;
}

}  // namespace foresail::cuda::mla
