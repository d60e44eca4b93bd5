// Output of the MLA decode kernel: the merge of requests that several blocks worked on, by those
// same blocks and in the same launch. A block's part of a request is a set of pieces, one warp's
// work each: 8 values a lane, all of one row, normalised, float16 (values beyond 65504 saturate).
#pragma once

#include "kernels/cuda/sm90/mla_walker.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mla {

inline constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ void write_lse(const KernelParams& p, const RowRange& rows, int row,
                                          float log_sum) {
  if (row < rows.count) p.lse[rows.first + row] = log_sum * kLn2;
}

// exp2(value - maximum) for a running maximum that may still be -infinity.
__device__ __forceinline__ float weight(float value, float maximum) {
  return maximum == kNegativeInfinity ? 0.f : ptx::exp2_approx(value - maximum);
}

// The reference that a row's weights are relative to, once a score of `raised` has come (base 2).
// Weights may be up to 256 (float16 holds 65504): so accumulators are rarely rescaled.
__device__ __forceinline__ float lazy_maximum(float old, float raised) {
  return raised > old + 8.f ? raised : old;
}

__device__ __forceinline__ void load_pairs(const PartialPiece* from, uint32_t (&pairs)[4]) {
  const uint4 loaded = __ldcg(reinterpret_cast<const uint4*>(from->pairs) + (threadIdx.x & 31));
  pairs[0] = loaded.x;
  pairs[1] = loaded.y;
  pairs[2] = loaded.z;
  pairs[3] = loaded.w;
}

// What one lane holds of one part: pairs of float16 values of one row.
template <int kPairs>
struct LanePart {
  uint32_t pairs[kPairs];
  float log_sum;
};

template <int kPairs>
struct LaneValues {
  float value[2 * kPairs];
  float log_sum;

  __device__ __forceinline__ LanePart<kPairs> packed() const {
    LanePart<kPairs> part;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) part.pairs[i] = ptx::pack_half(value[2 * i], value[2 * i + 1]);
    part.log_sum = log_sum;
    return part;
  }
};

// Merges `count` parts in their order, kAtOnce of them in flight. load(i, part) reads part i.
template <int kPairs, int kAtOnce, typename Load>
__device__ __forceinline__ LaneValues<kPairs> merge_parts(int count, const Load& load) {
  LaneValues<kPairs> merged;
#pragma unroll
  for (int i = 0; i < 2 * kPairs; ++i) merged.value[i] = 0.f;
  float maximum = kNegativeInfinity, sum = 0.f;
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
    LanePart<kPairs> part[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) part[j].pairs[i] = 0;
      part[j].log_sum = kNegativeInfinity;
      if (first + j < count) load(first + j, &part[j]);
    }
    float raised = maximum;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) raised = fmaxf(raised, part[j].log_sum);
    const float keep = weight(maximum, raised);
    maximum = raised;
    const float offset = raised == kNegativeInfinity ? 0.f : raised;
    sum *= keep;
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) merged.value[i] *= keep;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const float w = ptx::exp2_approx(part[j].log_sum - offset);
      sum += w;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 v = ptx::unpack_half(part[j].pairs[i]);
        merged.value[2 * i] = fmaf(v.x, w, merged.value[2 * i]);
        merged.value[2 * i + 1] = fmaf(v.y, w, merged.value[2 * i + 1]);
      }
    }
  }
  const float inverse = sum > 0.f ? __fdividef(1.f, sum) : 0.f;
#pragma unroll
  for (int i = 0; i < 2 * kPairs; ++i) merged.value[i] *= inverse;
  merged.log_sum = sum > 0.f ? maximum + __log2f(sum) : kNegativeInfinity;
  return merged;
}

// Where a block publishes its parts, and counts that it did; blocks of one `set` see to the same
// rows of their requests.
struct PartSet {
  int block;            // this block's share of the schedule
  PartialPiece* parts;  // [2 * shares, pieces]
  int* counters;        // [2 * shares] arrivals at a request, where its first part lies

  template <typename Pieces>
  __device__ __forceinline__ PartialPiece* piece(int slot, int piece) const {
    return parts + static_cast<int64_t>(slot) * Pieces::kCount + piece;
  }
  // log_sum: of rows 2 * (lane % 4) and the next.
  __device__ __forceinline__ void store(PartialPiece* to, const uint32_t (&pairs)[4],
                                        const float (&log_sum)[2]) const {
    const int lane = threadIdx.x & 31;
    __stcg(reinterpret_cast<uint4*>(to->pairs) + lane,
           uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
    if (lane < 4) {
      __stcg(reinterpret_cast<float2*>(to->log_sum) + lane, float2{log_sum[0], log_sum[1]});
    }
  }
  // Of a request that begins at `first_unit`.
  __device__ __forceinline__ int* counter(int first_unit, int total, int blocks) const {
    const int first_block = block_of_unit(first_unit, total, blocks);
    return counters + partial_slot(first_block, first_unit, total, blocks);
  }
};

// Writes kPairs pairs of a piece from `first_pair` on: pair i of a lane is of latent dims first_dim
// + pair_dim(i) + kLaneDims * (lane % 4) and the next, its row first_row + lane / 4.
template <typename Pieces, int kPairs>
__device__ __forceinline__ void write_piece(const KernelParams& p, const RowRange& rows, int piece,
                                            int first_pair, const LaneValues<kPairs>& values) {
  const int lane = threadIdx.x & 31;
  const int row = Pieces::first_row(piece) + lane / 4;
  if (row >= rows.count) return;
  const int dim = Pieces::first_dim(piece);
  __nv_bfloat16* out = p.output + static_cast<int64_t>(rows.first + row) * kLatent + dim +
                       Pieces::kLaneDims * (lane % 4);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    *reinterpret_cast<uint32_t*>(out + Pieces::pair_dim(first_pair + i)) =
        ptx::pack_bf16(values.value[2 * i], values.value[2 * i + 1]);
  }
  if (p.lse != nullptr && dim == 0 && first_pair == 0 && lane % 4 == 0) {
    write_lse(p, rows, row, values.log_sum);
  }
}

struct MergeTask {
  RowRange rows;
  int first_block;
  int count;       // blocks, and so parts
  int index;       // of this block among them
  int first_slot;  // of the first block; those of the others are 2 * block
};

// Merges this block's share of the pieces, dealt out over the warps of all blocks of the request;
// 2 to 8 warps of a block share a piece if there are more warps than pieces. Numbers of them are
// powers of two: a division here is on the way of all.
template <typename Pieces, int kAtOnce>
__device__ __forceinline__ void merge_pieces(const KernelParams& p, const PartSet& set,
                                             const MergeTask& task, int warp,
                                             LanePart<4>* scratch) {
  constexpr int kPiecesLog2 = 7;
  static_assert(Pieces::kCount == 1 << kPiecesLog2);
  const int lane = threadIdx.x & 31;
  const int team_log2 = min(31 - __clz((task.count * 8 >> kPiecesLog2) | 1), 3);
  const int teams_log2 = 3 - team_log2, team = 1 << team_log2;
  const int member = warp & (team - 1);
  const int parts = (task.count - member + team - 1) >> team_log2;
#pragma unroll 1
  for (int base = task.index << teams_log2; base < Pieces::kCount;
       base += task.count << teams_log2) {
    const int piece = base + (warp >> team_log2);
    const PartialPiece* first = set.template piece<Pieces>(task.first_slot, piece);
    const PartialPiece* others = set.template piece<Pieces>(2 * (task.first_block + member), piece);
    LaneValues<4> merged = merge_parts<4, kAtOnce>(parts, [&](int j, LanePart<4>* loaded) {
      const PartialPiece* from = others + (j << team_log2) * (2 * Pieces::kCount);
      Pieces::template load<4>(j + member == 0 ? first : from, 0, loaded);
    });
    if (team > 1) {
      LanePart<4>* shared_parts = scratch + warp * 32 + lane;
      *shared_parts = merged.packed();
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
      if (member == 0) {
        merged = merge_parts<4, 4>(
            team, [&](int j, LanePart<4>* loaded) { *loaded = shared_parts[j * 32]; });
      }
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    }
    if (member == 0) write_piece<Pieces, 4>(p, task.rows, piece, 0, merged);
  }
}

// Every block that worked on a shared request merges its part of the output. Called by the 256
// computing threads once per shared request, after all of the block's own parts are published, so
// no block ever waits for one that waits for it; all blocks are resident (MlaLaunch). warp: 0-7.
// scratch: room for 256 LanePart in shared memory.
template <typename Pieces, int kAtOnce>
__device__ __forceinline__ void merge_request(const KernelParams& p, const PartSet& set, int total,
                                              int blocks, const SharedRequest& request,
                                              const RowRange& rows, int warp, void* scratch) {
  const SplitGroup group = split_group(request.first_unit, request.units, total, blocks);
  const int count = group.block_count;
  const MergeTask task = {rows, group.first_block, count, set.block - group.first_block,
                          partial_slot(group.first_block, request.first_unit, total, blocks)};
  int* counter = set.counters + task.first_slot;
  const bool waiter = warp == 0 && (threadIdx.x & 31) == 0;
  int passed = 0;
  if (waiter) {
    while (ptx::load_acquire(counter) < count) {
    }
    // The second half of the count says who has passed the wait.
    passed = atomicAdd(counter, 1);
  }
  ptx::barrier_sync(kBarConsumers, kConsumerThreads);
  merge_pieces<Pieces, kAtOnce>(p, set, task, warp, static_cast<LanePart<4>*>(scratch));
  if (waiter && passed == 2 * count - 1) *counter = 0;  // the last one leaves zero behind
}

}  // namespace foresail::cuda::mla
