// Output of the MLA decode kernel: the merge of requests that several blocks worked on, in the same
// launch and without waiting for anyone outside the cluster.
//
// A part is a set of pieces, one warp's work each: 8 values a lane, normalised, float16. Blocks of
// one cluster add their parts up through distributed shared memory, each block a share of the
// pieces. If blocks of other clusters worked on the request too, the sum goes to global memory, and
// the last to arrive at a piece merges it.
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

// Says that this warp has stored a part of a piece; merges the piece if all its parts are there.
template <typename Pieces, int kAtOnce>
__device__ __forceinline__ void publish_piece(const KernelParams& p, const Walker& walker,
                                              const SplitGroup& group, const RowRange& rows,
                                              int request, int piece) {
  const int lane = threadIdx.x & 31;
  __threadfence();
  __syncwarp();
  const int parts = part_count(group, p.cluster_log2);
  int* counter = p.counters + static_cast<int64_t>(request) * Pieces::kCount + piece;
  int arrived = 0;
  if (lane == 0) arrived = atomicAdd(counter, 1);
  if (__shfl_sync(~0u, arrived, 0) != parts - 1) return;
  __threadfence();
  if (lane == 0) *counter = 0;
  const LaneValues merged = merge_parts<kAtOnce>(parts, [&](int part, LanePart* loaded) {
    const int slot = part_slot(group, part, p.cluster_log2, walker.blocks);
    const PartialPiece* from = partial_piece<Pieces>(p, slot, piece);
    loaded->packed = __ldcg(&from->values[lane]);
#pragma unroll
    for (int r = 0; r < 4; ++r) loaded->log_sum[r] = __ldcg(&from->log_sum[Pieces::row(r, lane)]);
  });
  Pieces::write(p, rows, piece, merged);
}

// Merges the block's share of a request that other blocks saw too, in its last segment: the parts
// of this cluster lie in shared memory at `pieces` and `log_sums` of each of its blocks. Called by
// kWarps warps of every block of the cluster that has a part, after a barrier of the cluster.
template <typename Pieces, int kWarps, int kAtOnceNear, int kAtOnceFar>
__device__ __forceinline__ void merge_cluster(const KernelParams& p, const Walker& walker,
                                              const SplitGroup& group, const Segment& segment,
                                              int warp, uint32_t pieces, uint32_t log_sums) {
  const int lane = threadIdx.x & 31;
  const int block = blockIdx.x;
  const int cluster_begin = block >> p.cluster_log2 << p.cluster_log2;
  const int begin = max(group.first_block, cluster_begin);
  const int end = min(group.tail_end(), cluster_begin + (1 << p.cluster_log2));
  const int parts = part_count(group, p.cluster_log2);
  const RowRange rows(p, segment.request);
  // Neighbouring pieces go to different blocks, so that all of them have work.
  for (int piece = warp * (end - begin) + block - begin; piece < Pieces::kCount;
       piece += (end - begin) * kWarps) {
    const LaneValues merged =
        merge_parts<kAtOnceNear>(end - begin, [&](int member, LanePart* loaded) {
          const uint32_t rank = begin - cluster_begin + member;
          loaded->packed = ptx::load_cluster(
              ptx::map_to_rank(pieces + (piece * 32 + lane) * 16, rank));
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const int row = Pieces::first_row(piece) + Pieces::row(r, lane);
            loaded->log_sum[r] =
                ptx::load_cluster_float(ptx::map_to_rank(log_sums + row * 4, rank));
          }
        });
    if (parts == 1) {
      Pieces::write(p, rows, piece, merged);
    } else {
      store_piece<Pieces>(p, begin, piece, merged);
      publish_piece<Pieces, kAtOnceFar>(p, walker, group, rows, segment.request, piece);
    }
  }
}

}  // namespace foresail::cuda::mla
