// The MLA decode kernel for 33 to 64 query rows; mla_decode.cu launches it.
//
// Query rows are the M side of both products ("classic"), padded to 64:
//   S[64, 64 keys]   = Q[64, 576] * K^T          one warpgroup, which also weighs
//   O[64, 512]      += P[64, 64] * V[64, 512]    two warpgroups, 256 latent dims each
// The score warpgroup runs a tile ahead of the value warpgroups, so that the softmax of one tile
// hides behind the values of the one before. Weights pass through shared memory as packed
// fragments: thread i of a value warpgroup needs exactly what thread i of the score warpgroup
// holds.
#pragma once

#include "kernels/cuda/sm90/mla_producers.cuh"
#include "kernels/cuda/sm90/mla_wide_output.cuh"
#include "kernels/cuda/sm90/mla_wide_scores.cuh"
#include "kernels/cuda/sm90/wgmma.h"

namespace foresail::cuda::mla {

// A tile lands, and is freed, in three parts: rotated dims, latent dims 0-255, latent dims 256-511.
struct WideLayout {
  static constexpr int kCopyRegisters = 56;
  static constexpr int kScoreRegisters = 104;
  static constexpr int kValueRegisters = 176;
  static_assert(kCopyRegisters + kScoreRegisters + 2 * kValueRegisters == 4 * 128);
  static constexpr int kQueryBytes = kChunks * kWideRows * 128;
  static constexpr int kQuery = kStages * kStageBytes;
  static constexpr int kWeights = kQuery + kQueryBytes;  // [4 steps of 16 keys][128 threads] uint4
  static constexpr int kRescale = kWeights + kWideRows * 128;      // [128 threads] float2
  static constexpr int kTotals = kRescale + 128 * 8;               // [2][2][64]: inverse, log_sum
  static constexpr int kHidden = kTotals + 2 * 2 * kWideRows * 4;  // [64] int
  static constexpr int kTasks = kHidden + kWideRows * 4;           // WideTask [2]
  static constexpr int kShared = kTasks + 64;                      // SharedRequest [2]
  static constexpr int kSharedCount = kShared + 2 * 16;            // int: how many of them
  static constexpr int kFull = kSharedCount + 16;                  // [kStages][kParts]
  static constexpr int kEmpty = kFull + kStages * kParts * 8;  // [kStages][kParts][2 key halves]
  static constexpr int kQueryFull = kEmpty + kStages * kParts * 2 * 8;
  static constexpr int kQueryEmpty = kQueryFull + 8;
  static constexpr int kWeightsFull = kQueryEmpty + 8;
  static constexpr int kWeightsEmpty = kWeightsFull + 8;
  static constexpr int kTaskFull = kWeightsEmpty + 8;  // of tasks, totals and their readers: [2]
  static constexpr int kTotalsFull = kTaskFull + 2 * 8;
  static constexpr int kSegmentDone = kTotalsFull + 2 * 8;
  static constexpr int kTotal = kSegmentDone + 2 * 8;
  static_assert(kTotal <= 227 * 1024);
  static constexpr int kQueryStages = 1;
};

__device__ __forceinline__ void wide_produce_keys(const PlainParams& p, const CUtensorMap* page_map,
                                                  const CUtensorMap* small_map, uint32_t shared,
                                                  Walker walker, const EarlyPages<4>& early) {
  using L = WideLayout;
  const uint64_t policy = ptx::evict_first_policy();
  Segment segment;
  const int big_box_log2 = min(p.page_log2, kTileLog2 - 1);
  int tile = 0;
  while (walker.next(p, &segment)) {
    const int slot = table_slot(p, segment.request);
    for (int key = segment.key_begin; key < segment.key_end; key += kTile, ++tile) {
      const int stage = tile % kStages;
      const int count = min(kTile, segment.key_end - key);
      const bool big = count == kTile && (key & ((1 << big_box_log2) - 1)) == 0;
      const int box_log2 = box_log2_of(p, big_box_log2, big);
      // At most a lane each: pages of one token have other kernels.
      const int boxes = kTile >> box_log2;
      const int row = find_boxes(p, early, table_row(p, slot), key, count, box_log2, 0);
      const CUtensorMap* map = one_of_maps(page_map, small_map, big);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int first = part == 0 ? kLatentChunks : (part - 1) * 4;  // chunk
        const int chunks = part == 0 ? 1 : 4;
        const uint32_t full = shared + L::kFull + (stage * kParts + part) * 8;
        const uint32_t barrier = __shfl_sync(~0u, full, 0);
        for (int half = 0; half < 2; ++half) {
          ptx::mbarrier_wait(shared + L::kEmpty + ((stage * kParts + part) * 2 + half) * 8,
                             ((tile / kStages) & 1) ^ 1);
          // Not before: the barrier may still count the tile before this one in the stage.
          if (half == 0) {
            if (ptx::elect_lane()) ptx::mbarrier_arrive_expect(full, chunks * kChunkBytes);
            __syncwarp();
          }
#pragma unroll 1
          for (int b = half * boxes >> 1; b < (half + 1) * boxes >> 1; ++b) {
            const int box_row = __shfl_sync(~0u, __shfl_sync(~0u, row, b), 0);
            const uint32_t box_to =
                __shfl_sync(~0u, shared + stage * kStageBytes + (b << box_log2) * 128, 0);
            if (ptx::elect_lane()) {
#pragma unroll
              for (int i = 0; i < chunks; ++i) {
                const int chunk = first + i;
                const uint32_t to = box_to + chunk * kChunkBytes;
                ptx::tma_load_2d(to, map, chunk * 64, box_row, barrier, policy);
              }
            }
          }
        }
      }
    }
  }
}

// The score warpgroup: S, softmax, and the sums of a segment.
struct WideScorer {
  using L = WideLayout;
  const PlainParams& p;
  uint8_t* smem;
  uint32_t shared;
  int thread, warp, lane;  // within the warpgroup
  float s[32];             // row lane / 4 at i % 4 < 2, row lane / 4 + 8 at the others
  float maximum[2], sum[2];

  __device__ __forceinline__ void score_tile(int tile) {
    const int stage = tile % kStages;
    const uint64_t keys = ptx::operand_descriptor(shared + stage * kStageBytes);
    const uint64_t queries = ptx::operand_descriptor(shared + L::kQuery);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::mbarrier_wait(shared + L::kFull + (stage * kParts + part) * 8, (tile / kStages) & 1);
      ptx::wgmma_fence();  // the compiler would put one here
      const int first = part == 0 ? kLatentChunks : (part - 1) * 4;
      const int chunks = part == 0 ? 1 : 4;
#pragma unroll
      for (int i = 0; i < chunks * 4; ++i) {
        const int offset = ((first + i / 4) * kChunkBytes + (i % 4) * 32) / 16;
        ptx::Wgmma<64>::run(s, queries + offset, keys + offset, part + i > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
  }

  // Weights of a tile from its scores. Returns what those before are to be multiplied by.
  __device__ __forceinline__ float2 weigh_tile(const Segment& segment, int key, int last_query) {
    const int count = min(kTile, segment.key_end - key);
    if (key + kTile > segment.key_len - last_query || count < kTile) {
      mask_scores(s, reinterpret_cast<const int*>(smem + L::kHidden) + warp * 16, key,
                  segment.key_len, segment.key_end);
    }
    float raised[2];
    find_largest(s, raised);
    // Mostly nobody's score exceeds the reference by much: then rows' maxima need not be known.
    bool exceeds = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      exceeds |= lazy_maximum(maximum[r], raised[r] * p.scale_log2) != maximum[r];
    }
    float factor[2] = {1.f, 1.f}, offset[2], part[2];
    if (__any_sync(~0u, exceeds)) {
      largest_of_lanes(raised);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float old = maximum[r];
        maximum[r] = lazy_maximum(old, raised[r] * p.scale_log2);
        factor[r] = weight(old, maximum[r]);
        sum[r] *= factor[r];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) offset[r] = offset_of(maximum[r]);
    weigh_scores(s, p.scale_log2, offset, part);
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += part[r];
    return {factor[0], factor[1]};
  }

  // Until the value warpgroups are done with the segment whose task and totals lay where those of
  // segment i will.
  __device__ __forceinline__ void wait_done(int i) {
    ptx::mbarrier_wait(shared + L::kSegmentDone + (i & 1) * 8, (i / 2 & 1) ^ 1);
  }

  __device__ __forceinline__ void run(Walker walker) {
    Segment segment;
    WideTask* tasks = reinterpret_cast<WideTask*>(smem + L::kTasks);
    int tile = 0;
    int i = 0;
    for (; walker.next(p, &segment); ++i) {
      wait_done(i);
      if (thread == 0) {
        const int keys = max(segment.key_end - segment.key_begin, 0);
        tasks[i & 1] = {(keys + kTile - 1) / kTile,
                        segment.request,
                        segment.first_unit,
                        segment.units,
                        walker.total,
                        walker.blocks,
                        segment.whole};
        ptx::mbarrier_arrive(shared + L::kTaskFull + (i & 1) * 8);
      }
      const RowRange rows(p, segment.request);
      if (i == 0) {  // the same for all requests
        if (thread < kWideRows) {
          reinterpret_cast<int*>(smem + L::kHidden)[thread] = rows.hidden_keys(p, thread);
        }
        ptx::barrier_sync(kBarWarpgroup, 128);
      }
      maximum[0] = maximum[1] = kNegativeInfinity;
      sum[0] = sum[1] = 0.f;
      ptx::mbarrier_wait(shared + L::kQueryFull, i & 1);
      for (int key = segment.key_begin; key < segment.key_end; key += kTile, ++tile) {
        const int stage = tile % kStages;
        score_tile(tile);
        if (lane < kParts * 2) {
          ptx::mbarrier_arrive(shared + L::kEmpty + (stage * kParts * 2 + lane) * 8);
        }
        const float2 factor = weigh_tile(segment, key, rows.last_query);
        ptx::mbarrier_wait(shared + L::kWeightsEmpty, (tile & 1) ^ 1);
        uint4* weights = reinterpret_cast<uint4*>(smem + L::kWeights) + thread;
#pragma unroll
        for (int k = 0; k < kTile / 16; ++k) {
          weights[k * 128] = {ptx::pack_bf16(s[8 * k], s[8 * k + 1]),
                              ptx::pack_bf16(s[8 * k + 2], s[8 * k + 3]),
                              ptx::pack_bf16(s[8 * k + 4], s[8 * k + 5]),
                              ptx::pack_bf16(s[8 * k + 6], s[8 * k + 7])};
        }
        reinterpret_cast<float2*>(smem + L::kRescale)[thread] = factor;
        clear_tail(smem + stage * kStageBytes, segment.key_end - key, thread);
        ptx::mbarrier_arrive(shared + L::kWeightsFull);
      }
      if (lane == 0) ptx::mbarrier_arrive(shared + L::kQueryEmpty);
      float* totals = reinterpret_cast<float*>(smem + L::kTotals) + (i & 1) * 2 * kWideRows;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float total = sum_of_lanes(sum[r]);
        const int row = warp * 16 + lane / 4 + 8 * r;
        if (lane % 4 == 0) {
          totals[row] = inverse_of(total);
          totals[kWideRows + row] = log_sum_of(total, maximum[r]);
        }
      }
      ptx::mbarrier_arrive(shared + L::kTotalsFull + (i & 1) * 8);
    }
    wait_done(i);
    if (thread == 0) {
      tasks[i & 1].tiles = -1;
      tasks[i & 1].total = walker.total;
      tasks[i & 1].blocks = walker.blocks;
      ptx::mbarrier_arrive(shared + L::kTaskFull + (i & 1) * 8);
    }
  }
};

// One of the two value warpgroups: O, and the output.
struct WideAccumulator : WideOutput<WideLayout, PlainParams> {
  using L = WideLayout;
  using WideOutput::WideOutput;

  __device__ __forceinline__ void accumulate_tile(int tile) {
    const int stage = tile % kStages;
    ptx::mbarrier_wait(shared + L::kWeightsFull, tile & 1);
    uint32_t weights[4][4];
    load_weights(weights);
    const float2 factor = reinterpret_cast<const float2*>(smem + L::kRescale)[thread];
    ptx::mbarrier_arrive(shared + L::kWeightsEmpty);
    if (__any_sync(~0u, factor.x != 1.f || factor.y != 1.f)) rescale(factor.x, factor.y);
    const uint64_t values = ptx::wide_operand_descriptor(
        shared + stage * kStageBytes + group * 4 * kChunkBytes, kChunkBytes);
    ptx::pin_registers(out[0]);
    ptx::pin_registers(out[1]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ptx::wgmma_registers<1>(out[half], weights[k],
                                values + (half * 2 * kChunkBytes + k * 2048) / 16, 1);
      }
      if (k % 2 == 1) ptx::wgmma_commit();
    }
    // The first half of the keys is free for the next copy while the second is being read.
    const uint32_t empty = shared + L::kEmpty + (stage * kParts + 1 + group) * 2 * 8;
    ptx::wgmma_wait<1>();
    if (lane == 0) ptx::mbarrier_arrive(empty);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(out[0]);
    ptx::pin_registers(out[1]);
    if (lane == 0) ptx::mbarrier_arrive(empty + 8);
  }

  __device__ __forceinline__ PartSet part_set() const {
    return {static_cast<int>(blockIdx.x), p.partials, p.counters};
  }

  __device__ __forceinline__ void finish_segment(const WideTask& task, const float* totals) {
    const int row = warp * 16 + lane / 4;
    const float inverse[2] = {totals[row], totals[row + 8]};
    const float log_sum[2] = {totals[kWideRows + row], totals[kWideRows + row + 8]};
    write(task, part_set(), inverse, log_sum);
  }

  __device__ __forceinline__ void run() {
    int tile = 0;
    for (int i = 0;; ++i) {
      const WideTask* task = reinterpret_cast<const WideTask*>(smem + L::kTasks) + (i & 1);
      ptx::mbarrier_wait(shared + L::kTaskFull + (i & 1) * 8, i / 2 & 1);
      const int tiles = __shfl_sync(~0u, task->tiles, 0);  // known to be uniform
      if (tiles < 0) {
        merge(part_set(), *task);
        return;
      }
      clear();
      for (int done = 0; done < tiles; ++done, ++tile) accumulate_tile(tile);
      ptx::mbarrier_wait(shared + L::kTotalsFull + (i & 1) * 8, i / 2 & 1);
      finish_segment(*task,
                     reinterpret_cast<const float*>(smem + L::kTotals) + (i & 1) * 2 * kWideRows);
      ptx::mbarrier_arrive(shared + L::kSegmentDone + (i & 1) * 8);
    }
  }
};

__global__ void __launch_bounds__(kWideThreads, 1)
    mla_decode_wide_kernel(const __grid_constant__ PlainParams params,
                           const __grid_constant__ CUtensorMap query_map,
                           const __grid_constant__ CUtensorMap page_map,
                           const __grid_constant__ CUtensorMap small_map) {
  using L = WideLayout;
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t shared = ptx::shared_address(smem);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  if (warp == 0 && lane == 0) {
    if ((shared & 1023) != 0) __trap();  // the swizzle is a function of the address
    ptx::prefetch_tensor_map(&page_map);
    ptx::prefetch_tensor_map(&small_map);
  }
  if (warp == 1 && lane == 0) {
    for (int i = 0; i < kStages; ++i) {
      for (int part = 0; part < kParts; ++part) {
        ptx::mbarrier_init(shared + L::kFull + (i * kParts + part) * 8, 1);
        // Warps that read the part: those that score, and but for the rotated dims one group.
        for (int half = 0; half < 2; ++half) {
          ptx::mbarrier_init(shared + L::kEmpty + ((i * kParts + part) * 2 + half) * 8,
                             part == 0 ? 4 : 8);
        }
      }
    }
    *reinterpret_cast<int*>(smem + L::kSharedCount) = 0;
    ptx::mbarrier_init(shared + L::kWeightsFull, 4 * 32);
    ptx::mbarrier_init(shared + L::kWeightsEmpty, 8 * 32);
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(shared + L::kTaskFull + i * 8, 1);
      ptx::mbarrier_init(shared + L::kTotalsFull + i * 8, 4 * 32);
      ptx::mbarrier_init(shared + L::kSegmentDone + i * 8, 8 * 32);
    }
    ptx::prefetch_tensor_map(&query_map);
    ptx::mbarrier_init(shared + L::kQueryFull, 1);
    ptx::mbarrier_init(shared + L::kQueryEmpty, 4);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  ptx::wait_for_predecessor();
  const int first = first_kv_end(params);
  EarlyPages<4> early;
  if (warp == 0) early.ask(params);
  __syncthreads();
  ptx::launch_dependents();
  // Before the roles part: one copy of its instructions instead of three on their way to the SM.
  const Walker walker(params, blockIdx.x, first);
  if (warp < 4) {
    ptx::register_decrease<L::kCopyRegisters>();
    if (warp == 0) wide_produce_keys(params, &page_map, &small_map, shared, walker, early);
    if (warp == 1) produce_queries<L, kWideRows>(params, &query_map, shared, walker);
    if (warp == 2) prefetch_tables(params);
  } else if (warp < 8) {
    ptx::register_decrease<L::kScoreRegisters>();
    WideScorer scorer{params, smem, shared, static_cast<int>(threadIdx.x & 127), warp & 3, lane};
    scorer.run(walker);
  } else {
    ptx::register_increase<L::kValueRegisters>();
    WideAccumulator accumulator(params, smem, shared, 8);
    accumulator.run();
  }
}

}  // namespace foresail::cuda::mla
