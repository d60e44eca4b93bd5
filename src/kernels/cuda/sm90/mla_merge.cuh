// Output of the MLA decode kernel: the fragment layout, and the merge of requests that several
// blocks worked on, by those same blocks and in the same launch.
#pragma once

#include "kernels/cuda/sm90/mla_walker.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mla {

// Writes rows [8 * block, +8) x 16 latent dims of a request: `value` is one warp's fragment of O^T
// (thread: dims lane / 4 and + 8, rows 2 * (lane % 4) and + 1), already normalised.
__device__ __forceinline__ void write_output(const KernelParams& p, const RowRange& rows,
                                             int row_block, int dim, float4 value) {
  const int lane = threadIdx.x & 31;
  const uint32_t low = ptx::transpose_matrix(ptx::pack_bf16(value.x, value.y));
  const uint32_t high = ptx::transpose_matrix(ptx::pack_bf16(value.z, value.w));
  const int row = row_block * 8 + lane / 4;
  if (row >= rows.count) return;
  __nv_bfloat16* out =
      p.output + static_cast<int64_t>(rows.first + row) * kLatent + dim + 2 * (lane % 4);
  *reinterpret_cast<uint32_t*>(out) = low;
  *reinterpret_cast<uint32_t*>(out + 8) = high;
}

__device__ __forceinline__ void write_lse(const KernelParams& p, const RowRange& rows, int row,
                                          float maximum, float sum) {
  constexpr float kLn2 = 0.6931471805599453f;
  if (row >= rows.count) return;
  p.lse[rows.first + row] = sum > 0.f ? (maximum + __log2f(sum)) * kLn2 : kNegativeInfinity;
}

// exp2(value - maximum) for a running maximum that may still be -infinity.
__device__ __forceinline__ float weight(float value, float maximum) {
  return maximum == kNegativeInfinity ? 0.f : ptx::exp2_approx(value - maximum);
}

// One warp fragment of O^T being merged: 8 rows x 16 dims; this thread's part of it.
struct Merged {
  float4 value{0.f, 0.f, 0.f, 0.f};
  float2 maximum{kNegativeInfinity, kNegativeInfinity};  // of the thread's two rows
  float2 sum{0.f, 0.f};

  __device__ __forceinline__ void raise(float2 other_max) {
    const float2 new_max = {fmaxf(maximum.x, other_max.x), fmaxf(maximum.y, other_max.y)};
    const float2 keep = {weight(maximum.x, new_max.x), weight(maximum.y, new_max.y)};
    value = {value.x * keep.x, value.y * keep.y, value.z * keep.x, value.w * keep.y};
    sum = {sum.x * keep.x, sum.y * keep.y};
    maximum = new_max;
  }
  // `offset` is the maximum, or 0 while that is -infinity.
  __device__ __forceinline__ void take(float4 other, float4 max_and_sum, float2 offset) {
    const float2 w = {ptx::exp2_approx(max_and_sum.x - offset.x),
                      ptx::exp2_approx(max_and_sum.z - offset.y)};
    value.x = fmaf(other.x, w.x, value.x);
    value.y = fmaf(other.y, w.y, value.y);
    value.z = fmaf(other.z, w.x, value.z);
    value.w = fmaf(other.w, w.y, value.w);
    sum = {fmaf(max_and_sum.y, w.x, sum.x), fmaf(max_and_sum.w, w.y, sum.y)};
  }
  __device__ __forceinline__ float2 offset() const {
    return {maximum.x == kNegativeInfinity ? 0.f : maximum.x,
            maximum.y == kNegativeInfinity ? 0.f : maximum.y};
  }
};

// What a block knows about the merge of one shared request.
struct MergeTask {
  SplitGroup group;
  int index;       // this block within the group
  int first_slot;  // slot of the group's first block; the others are 2 * block
};

// Merges this block's share of the units: kAtOnce units a warp at a time, kBatch partial results of
// each in flight, `team` warps a unit (1 if kAtOnce > 1).
template <int N, int kAtOnce, int kBatch>
__device__ __forceinline__ void merge_units(const KernelParams& p, const MergeTask& task,
                                            const RowRange& rows, int team, float4* scratch) {
  constexpr int kUnits = N / 8 * 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int teams = 8 / team, member = warp % team;
  const int count = task.group.block_count;
  const int step = count * teams;
  for (int base = task.index * teams; base < kUnits; base += step * kAtOnce) {
    Merged merged[kAtOnce];
    for (int i = member; i < count; i += team * kBatch) {
      float4 value[kAtOnce][kBatch], weights[kAtOnce][kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int other = i + j * team;
        const int slot = other == 0 ? task.first_slot : 2 * (task.group.first_block + other);
        const float4* from = p.partials + static_cast<int64_t>(slot) * (N * 128) + lane;
        const float2* from_weights = p.weights + slot * N + 2 * (lane % 4);
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const int unit = base + warp / team + u * step;
          value[u][j] = {0.f, 0.f, 0.f, 0.f};
          weights[u][j] = {kNegativeInfinity, 0.f, kNegativeInfinity, 0.f};
          if (other < count && unit < kUnits) {
            value[u][j] = __ldcg(from + unit * 32);
            weights[u][j] =
                __ldcg(reinterpret_cast<const float4*>(from_weights + (unit / 8) % (N / 8) * 8));
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        float2 maximum{kNegativeInfinity, kNegativeInfinity};
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          maximum = {fmaxf(maximum.x, weights[u][j].x), fmaxf(maximum.y, weights[u][j].z)};
        }
        merged[u].raise(maximum);
        const float2 offset = merged[u].offset();
#pragma unroll
        for (int j = 0; j < kBatch; ++j) merged[u].take(value[u][j], weights[u][j], offset);
      }
    }
    if (kAtOnce == 1 && team > 1) {
      scratch[(warp * 32 + lane) * 2] = merged[0].value;
      scratch[(warp * 32 + lane) * 2 + 1] = {merged[0].maximum.x, merged[0].sum.x,
                                             merged[0].maximum.y, merged[0].sum.y};
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
      if (member == 0) {
#pragma unroll 1
        for (int j = 1; j < team; ++j) {
          const float4 weights = scratch[((warp + j) * 32 + lane) * 2 + 1];
          merged[0].raise({weights.x, weights.z});
          merged[0].take(scratch[((warp + j) * 32 + lane) * 2], weights, merged[0].offset());
        }
      }
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int unit = base + warp / team + u * step;
      if (unit >= kUnits || member != 0) continue;
      const float2 sum = merged[u].sum;
      const float2 inverse = {sum.x > 0.f ? 1.f / sum.x : 0.f, sum.y > 0.f ? 1.f / sum.y : 0.f};
      const int row_block = (unit / 8) % (N / 8);
      const int dim = 256 * ((unit & 7) / 4) + 64 * (unit / N) + 16 * (unit & 3);
      write_output(p, rows, row_block, dim,
                   {merged[u].value.x * inverse.x, merged[u].value.y * inverse.y,
                    merged[u].value.z * inverse.x, merged[u].value.w * inverse.y});
      if (p.lse != nullptr && dim == 0 && lane < 4) {
        write_lse(p, rows, row_block * 8 + 2 * lane, merged[u].maximum.x, sum.x);
        write_lse(p, rows, row_block * 8 + 2 * lane + 1, merged[u].maximum.y, sum.y);
      }
    }
  }
}

// Every block that worked on a shared request merges its part of the output: the accumulators are
// N/8 * 32 units of one warp fragment (8 rows x 16 dims, 512 bytes), dealt out over the blocks.
// Called once per shared request after all of the block's own partial results are published, so
// no block ever waits for one that waits for it; all blocks are resident (MlaLaunch).
template <int N>
__device__ __forceinline__ void merge_request(const KernelParams& p, const Walker& walker,
                                              const SharedRequest& request, float4* scratch) {
  MergeTask task;
  task.group = split_group(request.first_unit, request.units, walker.total, walker.blocks());
  task.index = blockIdx.x - task.group.first_block;
  task.first_slot =
      partial_slot(task.group.first_block, request.first_unit, walker.total, walker.blocks());
  const RowRange rows(p, request.request);
  int* counter = p.counters + request.request;
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(counter) < task.group.block_count) {
    }
  }
  ptx::barrier_sync(kBarConsumers, kConsumerThreads);
  const int count = task.group.block_count;
  if (count <= 4) {
    merge_units<N, 4, 4>(p, task, rows, 1, scratch);
  } else {
    int team = 1;  // enough warps a unit that all warps of the group have work
    while (team < 8 && 2 * team * (N / 8 * 32) <= count * 8) team *= 2;
    merge_units<N, 1, 17>(p, task, rows, team, scratch);  // 17 * 8 warps >= 132 blocks
  }
  // The second half of the count says who has passed the wait; the last one leaves zero behind.
  if (threadIdx.x == 0 && atomicAdd(counter, 1) == 2 * count - 1) *counter = 0;
}

}  // namespace foresail::cuda::mla
