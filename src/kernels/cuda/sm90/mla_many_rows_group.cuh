// The computing warpgroups of the kernel for more than 64 rows.
#pragma once

#include "kernels/cuda/sm90/mla_many_rows_layout.cuh"
#include "kernels/cuda/sm90/mla_wide_scores.cuh"
#include "kernels/cuda/sm90/wgmma.h"

namespace foresail::cuda::mla {

// One of the two warpgroups; kGroup, where it is a parameter: 0 left, 1 right.
struct ManyRowsGroup : WideOutput<ManyRowsLayout, KernelParams> {
  using L = ManyRowsLayout;
  using WideOutput::WideOutput;
  float s[32];         // scores, then weights, of a tile (mla_wide_scores.cuh)
  float reference[2];  // what weights in `out` and `sum` are relative to, base 2
  float sum[2];        // of this warpgroup's tiles

  // Frees a part for the next copy.
  __device__ __forceinline__ void free_part(int stage, int part) {
    const uint32_t barrier = shared + L::kEmpty + (stage * L::kParts + part) * 8;
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  template <int kGroup>
  __device__ __forceinline__ void free_values(int stage, int half) {
    free_part(stage, 1 + kGroup * 2 + half);
  }

  // Asks for products of parts of this warpgroup's tile: one group.
  template <int kGroup, int kFirst, int kParts>
  __device__ __forceinline__ void ask_scores(int parity) {
    const uint64_t keys = ptx::uniform_descriptor(shared + kGroup * kStageBytes);
    const uint64_t queries = ptx::uniform_descriptor(shared + L::kQuery);
#pragma unroll
    for (int part = kFirst; part < kFirst + kParts; ++part) {
      ptx::mbarrier_wait(shared + L::kFull + (kGroup * L::kParts + part) * 8, parity);
      // Here, behind the wait, or the compiler serialises all products (C7520).
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < L::chunks(part) * 4; ++i) {
        const int offset = ((L::first_chunk(part) + i / 4) * kChunkBytes + (i % 4) * 32) / 16;
        ptx::Wgmma<64>::run(s, queries + offset, keys + offset, part + i > 0);
      }
    }
    ptx::wgmma_commit();
  }

  // Asks for the values of a tile: two groups, 128 dims each.
  template <int kGroup>
  __device__ __forceinline__ void ask_values(int stage, const uint32_t (&weights)[4][4]) {
    const uint64_t values = ptx::wide_operand_descriptor(
        shared + stage * kStageBytes + kGroup * 4 * kChunkBytes, kChunkBytes);
    ptx::pin_registers(out[0]);
    ptx::pin_registers(out[1]);
    ptx::wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        ptx::wgmma_registers<1>(out[half], weights[k],
                                values + (half * 2 * kChunkBytes + k * 2048) / 16, 1);
      }
      ptx::wgmma_commit();
    }
  }

  __device__ __forceinline__ void keep(const uint32_t (&weights)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) ptx::keep_registers(weights[k]);
  }

  // After ask_values, if nothing was asked for since.
  template <int kGroup>
  __device__ __forceinline__ void finish_values(int stage, const uint32_t (&weights)[4][4]) {
    ptx::wgmma_wait<1>();
    free_values<kGroup>(stage, 0);
    ptx::wgmma_wait<0>();
    keep(weights);
    ptx::pin_registers(out[0]);
    ptx::pin_registers(out[1]);
    free_values<kGroup>(stage, 1);
  }

  // Weights are relative to another reference from now on. factor: for those before.
  __device__ __forceinline__ void follow(int row, float moved, float (&factor)[2]) {
    factor[row] = weight(reference[row], moved);
    reference[row] = moved;
    sum[row] *= factor[row];
  }

  // Weights of this warpgroup's tile from its scores. Returns whether the reference of a row of
  // this warp has moved; factor is known only then.
  template <typename Between>
  __device__ __forceinline__ bool weigh(const ManyRowsTask& task, const int* hidden, int key,
                                        int seen_by_all, uint32_t (&weights)[4][4],
                                        float (&factor)[2], const Between& between) {
    if (key + kTile > seen_by_all) {
      mask_scores(s, hidden + warp * 16, key, task.key_len, task.key_end);
    }
    float raised[2];
    find_largest(s, raised);
    // Mostly nobody's score exceeds the reference by much: then rows' maxima need not be known.
    bool exceeds = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      exceeds |= lazy_maximum(reference[r], raised[r] * p.scale_log2) != reference[r];
    }
    const bool moved = __any_sync(~0u, exceeds);
    if (moved) {
      largest_of_lanes(raised);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        follow(r, lazy_maximum(reference[r], raised[r] * p.scale_log2), factor);
      }
    }
    const float offset[2] = {offset_of(reference[0]), offset_of(reference[1])};
    between();
    float part[2];
    weigh_scores(s, p.scale_log2, offset, part);
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += part[r];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = ptx::pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
      }
    }
    return moved;
  }

  template <int kGroup>
  __device__ __forceinline__ void clear_own_tail(const ManyRowsTask& task, int key,
                                                 int seen_by_all) {
    // The first is in a register, and mostly answers.
    if (key + kTile <= seen_by_all || key + kTile <= task.key_end) return;
    clear_tail(smem + kGroup * kStageBytes, task.key_end - key, thread);
    ptx::mbarrier_meet(shared + L::kCleared + kGroup * 8);
  }

  __device__ __forceinline__ void tell_reference() {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared + L::kReference + thread * 8),
                 "f"(reference[0]), "f"(reference[1])
                 : "memory");
  }

  template <int kGroup>
  __device__ __forceinline__ void publish(const uint32_t (&weights)[4][4]) {
    uint4* to = reinterpret_cast<uint4*>(smem + L::kWeights) + thread;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      to[k * 128] = {weights[k][0], weights[k][1], weights[k][2], weights[k][3]};
    }
    if (kGroup == 0) tell_reference();
    ptx::mbarrier_arrive(shared + L::kWeightsFull + kGroup * 8);
  }

  // The weights of the other warpgroup's tile. Returns what weigh does.
  template <int kGroup>
  __device__ __forceinline__ bool receive(int parity, uint32_t (&weights)[4][4],
                                          float (&factor)[2]) {
    ptx::mbarrier_wait(shared + L::kWeightsFull + (1 - kGroup) * 8, parity);
    load_weights(weights);
    const float2 theirs = reinterpret_cast<const float2*>(smem + L::kReference)[thread];
    const bool moved = __any_sync(~0u, theirs.x != reference[0] || theirs.y != reference[1]);
    if (moved) {
      follow(0, theirs.x, factor);
      follow(1, theirs.y, factor);
    }
    return moved;
  }

  // pairs, odds: tiles A and B that there were before this segment; of tile A there is one more
  // where their number is odd.
  __device__ __forceinline__ void run_left(const ManyRowsTask& task, int tiles, const int* hidden,
                                           int pairs, int odds) {
    uint32_t weights[4][4];
    float factor[2];
    const int seen_by_all = min(task.key_len - task.last_query, task.key_end);
    int key = task.key_begin;
    ask_scores<0, 0, 5>(pairs & 1);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
    const auto first_tile = [&] {
      free_part(0, 0);
      const bool moved = weigh(task, hidden, key, seen_by_all, weights, factor, [] {});
      clear_own_tail<0>(task, key, seen_by_all);
      publish<0>(weights);
      if (moved) rescale(factor[0], factor[1]);
      ask_values<0>(0, weights);
      finish_values<0>(0, weights);
    };
    const auto ask_second_tile = [&] {
      if (receive<0>(odds & 1, weights, factor)) rescale(factor[0], factor[1]);
      ask_values<0>(1, weights);
    };
    int t = 0;
    for (; t + 2 < tiles; t += 2, key += 2 * kTile, ++pairs, ++odds) {
      first_tile();
      ask_second_tile();
      ask_scores<0, 0, 1>((pairs & 1) ^ 1);
      ptx::wgmma_wait<2>();
      free_values<0>(1, 0);
      ptx::wgmma_wait<1>();
      keep(weights);
      free_values<0>(1, 1);
      ask_scores<0, 1, 4>((pairs & 1) ^ 1);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
      ptx::pin_registers(out[0]);
      ptx::pin_registers(out[1]);
    }
    first_tile();
    if (t + 1 < tiles) {
      ask_second_tile();
      finish_values<0>(1, weights);
    }
  }

  __device__ __forceinline__ void run_right(const ManyRowsTask& task, int tiles, const int* hidden,
                                            int pairs, int odds) {
    uint32_t weights[4][4], own[4][4];
    float factor[2];
    const int seen_by_all = min(task.key_len - task.last_query, task.key_end);
    int key = task.key_begin + kTile;
    int t = 0;
    for (; t + 1 < tiles; t += 2, key += 2 * kTile, ++pairs, ++odds) {
      ask_scores<1, 0, 5>(odds & 1);
      if (receive<1>(pairs & 1, weights, factor)) {
        // The wait is for the compiler, which serialises all products without it.
        ptx::wgmma_wait<0>();
        ptx::pin_registers(s);
        rescale(factor[0], factor[1]);
      }
      ask_values<1>(0, weights);
      ptx::wgmma_wait<2>();
      ptx::pin_registers(s);
      free_part(1, 0);
      const bool moved = weigh(task, hidden, key, seen_by_all, own, factor, [&] {
        // The stores here and in publish keep the compiler from putting the softmax behind the
        // waits for the product that it is to run beside.
        tell_reference();
        ptx::wgmma_wait<1>();
        free_values<1>(0, 0);
      });
      clear_own_tail<1>(task, key, seen_by_all);
      publish<1>(own);
      ptx::wgmma_wait<0>();
      keep(weights);
      ptx::pin_registers(out[0]);
      ptx::pin_registers(out[1]);
      free_values<1>(0, 1);
      if (moved) rescale(factor[0], factor[1]);
      ask_values<1>(1, own);
      finish_values<1>(1, own);
    }
    if (t < tiles) {
      if (receive<1>(pairs & 1, weights, factor)) rescale(factor[0], factor[1]);
      ask_values<1>(0, weights);
      finish_values<1>(0, weights);
    }
  }

  // i: number of the segment.
  __device__ __forceinline__ void finish_segment(const ManyRowsTask& task, int i) {
    float* sums = reinterpret_cast<float*>(smem + L::kSums) + (i & 1) * 2 * kWideRows;
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = sum_of_lanes(sum[r]);
      if (lane % 4 == 0) sums[group * kWideRows + row + 8 * r] = sum[r];
    }
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    float inverse[2], log_sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = sums[row + 8 * r] + sums[kWideRows + row + 8 * r];
      inverse[r] = inverse_of(total);
      log_sum[r] = log_sum_of(total, reference[r]);
    }
    write(task, ManyRowsShare(p).part_set(p), inverse, log_sum);
  }

  __device__ __forceinline__ void run() {
    int pairs = 0, odds = 0;
    for (int i = 0;; ++i) {
      ptx::mbarrier_wait(shared + L::kQueryFull, i & 1);
      const ManyRowsTask& task = reinterpret_cast<const ManyRowsTask*>(smem + L::kTasks)[i & 1];
      const int* hidden = reinterpret_cast<const int*>(smem + L::kHidden) + (i & 1) * kWideRows;
      const int tiles = __shfl_sync(~0u, task.tiles, 0);  // known to be uniform
      if (tiles < 0) {
        merge(ManyRowsShare(p).part_set(p), task);
        return;
      }
      clear();
      reference[0] = reference[1] = kNegativeInfinity;
      sum[0] = sum[1] = 0.f;
      if (tiles > 0) {
        if (group == 0) {
          run_left(task, tiles, hidden, pairs, odds);
        } else {
          run_right(task, tiles, hidden, pairs, odds);
        }
      }
      pairs += (tiles + 1) / 2;
      odds += tiles / 2;
      ptx::mbarrier_arrive(shared + L::kQueryEmpty);  // every lane: all of them read the task
      finish_segment(task, i);
    }
  }
};

}  // namespace foresail::cuda::mla
