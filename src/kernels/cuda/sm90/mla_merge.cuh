// Output of the MLA decode kernel: the fragment layout, and the merge of requests that several
// blocks worked on, by those same blocks and in the same launch.
#pragma once

#include "kernels/cuda/sm90/mla_walker.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mla {

// Writes rows [8 * block, +8) x 16 latent dims of a request: `value` is one warp's fragment of O^T
// (thread: dims lane / 4 and + 8, rows 2 * (lane % 4) and + 1), already normalised.
__device__ __forceinline__ void write_output(const KernelParams& p, int request, int row_block,
                                             int dim, float4 value) {
  const int lane = threadIdx.x & 31;
  const uint32_t low = ptx::transpose_matrix(ptx::pack_bf16(value.x, value.y));
  const uint32_t high = ptx::transpose_matrix(ptx::pack_bf16(value.z, value.w));
  const int real = request / p.row_blocks;
  const int row_in_block = row_block * 8 + lane / 4;
  const int row = (request - real * p.row_blocks) * p.rows_per_block + row_in_block;
  if (row_in_block >= p.rows_per_block || row >= p.rows) return;
  __nv_bfloat16* out =
      p.output + (static_cast<int64_t>(real) * p.rows + row) * kLatent + dim + 2 * (lane % 4);
  *reinterpret_cast<uint32_t*>(out) = low;
  *reinterpret_cast<uint32_t*>(out + 8) = high;
}

__device__ __forceinline__ void write_lse(const KernelParams& p, int request, int row_in_block,
                                          float maximum, float sum) {
  const int real = request / p.row_blocks;
  const int row = (request - real * p.row_blocks) * p.rows_per_block + row_in_block;
  if (row_in_block >= p.rows_per_block || row >= p.rows) return;
  constexpr float kLn2 = 0.6931471805599453f;
  p.lse[static_cast<int64_t>(real) * p.rows + row] =
      sum > 0.f ? (maximum + __log2f(sum)) * kLn2 : kNegativeInfinity;
}

// exp2(value - maximum) for a running maximum that may still be -infinity.
__device__ __forceinline__ float weight(float value, float maximum) {
  return maximum == kNegativeInfinity ? 0.f : ptx::exp2_approx(value - maximum);
}

struct Merged {
  float4 value{0.f, 0.f, 0.f, 0.f};
  float2 maximum{kNegativeInfinity, kNegativeInfinity};  // of the thread's two rows
  float2 sum{0.f, 0.f};

  __device__ __forceinline__ void add(float4 other, float2 other_max, float2 other_sum) {
    const float max_x = fmaxf(maximum.x, other_max.x);
    const float max_y = fmaxf(maximum.y, other_max.y);
    const float keep_x = weight(maximum.x, max_x), keep_y = weight(maximum.y, max_y);
    const float take_x = weight(other_max.x, max_x), take_y = weight(other_max.y, max_y);
    value.x = value.x * keep_x + other.x * take_x;
    value.y = value.y * keep_y + other.y * take_y;
    value.z = value.z * keep_x + other.z * take_x;
    value.w = value.w * keep_y + other.w * take_y;
    sum.x = sum.x * keep_x + other_sum.x * take_x;
    sum.y = sum.y * keep_y + other_sum.y * take_y;
    maximum = {max_x, max_y};
  }
};

// Every block that worked on a shared request merges its part of the output: the accumulators are
// N/8 * 32 units of one warp fragment (8 rows x 16 dims, 512 bytes), dealt out over the blocks.
// Called once per shared request after all of the block's own partial results are published, so
// no block ever waits for one that waits for it; all blocks are resident (cooperative launch).
template <int N>
__device__ __forceinline__ void merge_request(const KernelParams& p, const Walker& walker,
                                              const SharedRequest& segment, float4* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const SplitGroup group =
      split_group(segment.first_unit, segment.units, walker.total, walker.blocks());
  const int index = blockIdx.x - group.first_block;
  if (threadIdx.x == 0) {
    int* counter = p.counters + segment.request;
    while (ptx::load_acquire(counter) < group.block_count) {
    }
    // The second half of the count says who has passed; the last one leaves zero behind.
    if (atomicAdd(counter, 1) == 2 * group.block_count - 1) *counter = 0;
  }
  ptx::barrier_sync(kBarConsumers, kConsumerThreads);

  constexpr int kUnits = N / 8 * 32;
  // Warps a unit: enough that all warps of the group have work.
  int team = 1;
  while (team < 8 && 2 * team * kUnits <= group.block_count * 8) team *= 2;
  const int teams = 8 / team;
  const int member = warp % team;
  for (int base = index * teams; base < kUnits; base += group.block_count * teams) {
    const int unit = base + warp / team;
    const bool active = unit < kUnits;
    const int unit_warp = unit & 7;
    const int row_block = (unit / 8) % (N / 8);
    Merged merged;
    if (active) {
      constexpr int kBatch = 8;  // loads in flight a thread
      for (int i = member; i < group.block_count; i += team * kBatch) {
        float4 value[kBatch], weights[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int other = i + j * team;
          if (other < group.block_count) {
            const int slot = partial_slot(group.first_block + other, segment.first_unit,
                                          walker.total, walker.blocks());
            value[j] =
                __ldcg(p.partials + static_cast<int64_t>(slot) * (N * 128) + unit * 32 + lane);
            weights[j] = __ldcg(reinterpret_cast<const float4*>(p.weights + slot * N +
                                                                row_block * 8 + 2 * (lane % 4)));
          } else {
            value[j] = {0.f, 0.f, 0.f, 0.f};
            weights[j] = {kNegativeInfinity, 0.f, kNegativeInfinity, 0.f};
          }
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          merged.add(value[j], {weights[j].x, weights[j].z}, {weights[j].y, weights[j].w});
        }
      }
    }
    if (team > 1) {
      scratch[(warp * 32 + lane) * 2] = merged.value;
      scratch[(warp * 32 + lane) * 2 + 1] = {merged.maximum.x, merged.maximum.y, merged.sum.x,
                                             merged.sum.y};
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
      if (member == 0) {
        for (int j = 1; j < team; ++j) {
          const float4 value = scratch[((warp + j) * 32 + lane) * 2];
          const float4 other = scratch[((warp + j) * 32 + lane) * 2 + 1];
          merged.add(value, {other.x, other.y}, {other.z, other.w});
        }
      }
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    }
    if (active && member == 0) {
      const float inverse_x = merged.sum.x > 0.f ? 1.f / merged.sum.x : 0.f;
      const float inverse_y = merged.sum.y > 0.f ? 1.f / merged.sum.y : 0.f;
      const int dim_block = unit / (8 * (N / 8));
      const int dim = 256 * (unit_warp / 4) + 64 * dim_block + 16 * (unit_warp & 3);
      write_output(p, segment.request, row_block, dim,
                   {merged.value.x * inverse_x, merged.value.y * inverse_y,
                    merged.value.z * inverse_x, merged.value.w * inverse_y});
      if (p.lse != nullptr && dim == 0 && lane < 4) {
        write_lse(p, segment.request, row_block * 8 + 2 * lane, merged.maximum.x, merged.sum.x);
        write_lse(p, segment.request, row_block * 8 + 2 * lane + 1, merged.maximum.y, merged.sum.y);
      }
    }
  }
}

}  // namespace foresail::cuda::mla
