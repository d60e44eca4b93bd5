// A whole block of the mixture kernel: beside the warps that choose, those that norm the rows and
// multiply.
#pragma once

#include "kernels/cuda/sm90/mixture_chooser.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mixing {

__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Four inputs of a row as the B operand of two products.
__device__ __forceinline__ uint4 packed_terms(const float4& x) {
  const Terms t = split(x);
  return make_uint4(t.high[0], t.high[1], t.low[0], t.low[1]);
}

// One object for both kinds of warps: from two the compiler makes more code of the same.
class Mixer : public Chooser {
 public:
  using Chooser::Chooser;

  // The warps of the products; the others choose().
  __device__ __forceinline__ void run() {
    if (lane_ == 0) {
      for (int stage = 0; stage < kStages; ++stage) ptx::mbarrier_init(barrier(stage), 1);
      ptx::fence_mbarrier_init();
    }
    count_fixed();
    list_fixed();
    sync();
    supply();  // weights are nobody's result
    fetch(at_.norm_weights, args_.router.norm_weight, hidden() / 4);
    start_launch();
    norm_rows();
    if (router_end_ > 0) ask_router(0);
    // One loop for all kinds: instructions that are met for the first time are slow.
    int task = router_end_;
#pragma unroll 1
    for (;; ++task) {
      if (task == shared_gated_end_) learn_choice();
      if (task == gated_end_) break;
      gate_up(task, task < shared_gated_end_);
    }
    meet();
    if (down_end_ == gated_end_) return;
    stage(at_.inner, args_.inner,
          static_cast<int>(rows() * (args_.route.top_k * args_.inner_dim + args_.shared_dim) / 4));
    sync();
#pragma unroll 1
    for (int task = gated_end_; task < down_end_; ++task) down(task, task < shared_end_);
    sync();
    store_values();
  }

 private:
  // The warp's inputs, in tiles.
  struct Segment {
    int first, count;
  };
  __device__ __forceinline__ Segment segment_of(int k_tiles) const {
    const int first = segment_begin(warp_, k_tiles);
    return {first, segment_begin(warp_ + 1, k_tiles) - first};
  }
  __device__ __forceinline__ uint32_t barrier(int stage) const {
    return ptx::shared_address(&lists_.barriers[warp_][stage]);
  }

  // ---- who waits for whom ----------------------------------------------------------------------

  __device__ __forceinline__ static void sync() {
    ptx::barrier_sync(kBarProducts, kProductThreads);
  }
  __device__ __forceinline__ void learn_choice() {
    fetch_values();
    ptx::barrier_sync(kBarChosen, kMixtureThreads);
    count_chosen();
    supply();
  }
  // All blocks have their results of gate and up; waits if this one has a use for them.
  __device__ __forceinline__ void meet() {
    sync();
    if (threadIdx.x == 0) {
      int* done = args_.meeting + kGatedDone;
      ptx::add_release(done, 1);
      const unsigned all = static_cast<unsigned>(launch_) * gridDim.x;
      if (down_end_ > gated_end_)
        while (static_cast<int>(static_cast<unsigned>(ptx::load_acquire(done)) - all) < 0) {
        }
      if (blockIdx.x == 0) args_.meeting[kLaunches] = launch_;  // every block has read it
    }
    sync();
  }

  // The tasks that no choice decides.
  __device__ __forceinline__ void list_fixed() {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < shared_gated_end_; i += kProductThreads) {
      if (i < router_end_) {
        const int k_tiles = hidden() / kTileInputs;
        lists_.tasks[i] = {static_cast<const std::byte*>(args_.router.weight) +
                               int64_t{turn()} * k_tiles * kTileBytes,
                           nullptr, k_tiles, 0, turn() * kTileOutputs};
      } else {
        const auto tile = shared_turn() + (i - router_end_) * static_cast<int>(gridDim.x);
        lists_.tasks[i] = gated_task(args_.shared_gate_up, args_.shared_dim, tile, 0);
      }
    }
  }

  // ---- rows ------------------------------------------------------------------------------------

  // Starts to copy into shared memory; the thread has the same fours of every such copy.
  __device__ __forceinline__ void fetch(int to, const float* from, int fours) {
    const uint32_t place = ptx::shared_address(memory_ + to);
#pragma unroll 1
    for (int i = threadIdx.x; i < fours; i += kProductThreads)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place + 16 * i),
                   "l"(from + 4 * i)
                   : "memory");
  }
  // Until the thread's copies are there.
  __device__ __forceinline__ static void await_fetched() {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  // The rows, normed, as terms: bit for bit what rms_norm makes of them.
  __device__ __forceinline__ void norm_rows() {
    constexpr int kLoads = 8;
    const int n_in = hidden();
    const auto* weights = reinterpret_cast<const float4*>(memory_ + at_.norm_weights);
#pragma unroll 1
    for (int row = 0; row < rows(); ++row) {
      const float* from = static_cast<const float*>(args_.router.x) + row * args_.router.x_stride;
      auto* to = reinterpret_cast<float*>(memory_ + at_.normed) + row * n_in;
      float sum = 0.0f;
#pragma unroll 1
      for (int first = threadIdx.x; first < n_in; first += kLoads * kProductThreads) {
        float kept[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
          kept[i] = first + i * kProductThreads < n_in ? from[first + i * kProductThreads] : 0.0f;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          sum = __fmaf_rn(kept[i], kept[i], sum);
          if (first + i * kProductThreads < n_in) to[first + i * kProductThreads] = kept[i];
        }
      }
      sum = warp_sum(sum);
      if (lane_ == 0) lists_.squares[row][warp_] = sum;
    }
    await_fetched();  // the norm's weights
    sync();
#pragma unroll 1
    for (int row = 0; row < rows(); ++row) {
      float total = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kSegments; ++warp) total += lists_.squares[row][warp];
      const float factor = norm_factor(total, n_in, args_.router.norm_eps);
      auto* fours = reinterpret_cast<float4*>(memory_ + at_.normed) + row * (n_in / 4);
#pragma unroll 1
      for (int i = threadIdx.x; i < n_in / 4; i += kProductThreads) {
        const float4 x = fours[i];
        const float4 w = weights[i];
        reinterpret_cast<uint4*>(fours)[i] = packed_terms(make_float4(
            x.x * factor * w.x, x.y * factor * w.y, x.z * factor * w.z, x.w * factor * w.w));
      }
    }
    sync();
  }
  // Rows without gaps, as terms, into shared memory.
  __device__ __forceinline__ void stage(int to, const float* from, int fours) {
    fetch(to, from, fours);
    await_fetched();
    auto* place = reinterpret_cast<uint4*>(memory_ + to);
#pragma unroll 4
    for (int i = threadIdx.x; i < fours; i += kProductThreads)
      place[i] = packed_terms(*reinterpret_cast<const float4*>(place + i));
  }
  template <typename Body>
  __device__ __forceinline__ void for_values(Body&& body) {
    const auto row_count = static_cast<int>(rows());
    const auto output = static_cast<int>(threadIdx.x) % kTileOutputs;
    const int own = own_outputs();
#pragma unroll 1
    for (int i = threadIdx.x / kTileOutputs; i < own * row_count;
         i += kProductThreads / kTileOutputs) {
      const auto tile = static_cast<int>(blockIdx.x + i / row_count * gridDim.x);
      body(i / row_count, i % row_count, output,
           args_.out + i % row_count * args_.out_stride + tile * kTileOutputs + output);
    }
  }
  __device__ __forceinline__ void fetch_values() {
    for_values([&](int tile, int row, int output, const float* at) {
      lists_.value[tile][row][output] = __ldcg(at);
    });
  }
  __device__ __forceinline__ void store_values() {
    const bool has_shared = args_.shared_down != nullptr;
    for_values([&](int tile, int row, int output, float* at) {
      const float value = lists_.value[tile][row][output];
      *at = has_shared ? __fadd_rn(value, lists_.shared_value[tile][row][output]) : value;
    });
  }

  // ---- products --------------------------------------------------------------------------------

  // Copies units of the tasks that are known until the ring is full.
  __device__ __forceinline__ void supply() {
#pragma unroll 1
    while (supplied_ - used_ < kStages && supply_task_ < known_end_) {
      const Task& task = lists_.tasks[supply_task_];
      const std::byte* up = task.up;
      const Segment segment = segment_of(task.k_tiles);
      const int most = up != nullptr ? kGatedTiles : kPlainTiles;
      if (lane_ == 0) {
        const int stage = supplied_ % kStages;
        const uint32_t bytes = min(most, segment.count - supply_first_) * kTileBytes;
        const int64_t offset = (segment.first + supply_first_) * int64_t{kTileBytes};
        const uint32_t to = ptx::shared_address(memory_) + (warp_ * kStages + stage) * kUnitBytes;
        const uint64_t policy = ptx::evict_first_policy();
        ptx::mbarrier_arrive_expect(barrier(stage), up != nullptr ? 2 * bytes : bytes);
        copy_bulk(to, task.weight + offset, bytes, barrier(stage), policy);
        if (up != nullptr)
          copy_bulk(to + kUnitBytes / 2, up + offset, bytes, barrier(stage), policy);
      }
      ++supplied_;
      supply_first_ += most;
      if (supply_first_ >= segment.count) {
        supply_first_ = 0;
        ++supply_task_;
      }
    }
  }

  // The warp's segment of a task, by a row of those at `place`.
  template <int kHalves>
  __device__ __forceinline__ void multiply_segment(int place, int row, int k_tiles,
                                                   float (&acc)[kHalves][4]) {
    constexpr int kMost = kPlainTiles / kHalves;
    const Segment segment = segment_of(k_tiles);
    const int count = segment.count;
    const auto* x = reinterpret_cast<const uint4*>(memory_ + place) + row * k_tiles * 4 +
                    segment.first * 4 + lane_ % 4;
#pragma unroll 1
    for (int first = 0; first < count; first += kMost) {
      const int stage = used_ % kStages;
      ptx::mbarrier_wait(barrier(stage), used_ / kStages % 2);
      const auto* weight =
          reinterpret_cast<const uint4*>(memory_ + (warp_ * kStages + stage) * kUnitBytes) + lane_;
      const auto multiply_tile = [&](int i) {
        const uint4 t = x[i * 4];
        const Terms terms = {{t.x, t.y}, {t.z, t.w}};
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
          multiply<false>(acc[h], weight[(h * kMost + i) * kWarp], terms);
      };
      const int tiles = min(kMost, count - first);
      int done = 0;
      for (; done + kTogether <= tiles; done += kTogether)
#pragma unroll
        for (int i = 0; i < kTogether; ++i) multiply_tile(done + i);
#pragma unroll 1
      for (; done < tiles; ++done) multiply_tile(done);
      x += tiles * 4;
      __syncwarp();  // the unit may be written again
      ++used_;
      supply();
    }
  }
  // The sums of all warps: of `row` of the task, results threadIdx % 16.
  template <int kHalves>
  __device__ __forceinline__ void sum_segments(float (&acc)[kHalves][4], float (&sum)[kHalves]) {
    Partial& partial = lists_.partial[turn_];
    turn_ ^= 1;
    const int g = lane_ / 4;
    const int q = lane_ % 4;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      auto& part = partial.sum[h][warp_];
      part[2 * q][g] = acc[h][0];
      part[2 * q + 1][g] = acc[h][1];
      part[2 * q][g + 8] = acc[h][2];
      part[2 * q + 1][g + 8] = acc[h][3];
    }
    sync();
    const int row = static_cast<int>(threadIdx.x) / kTileOutputs % kFewRows;
    const int output = static_cast<int>(threadIdx.x) % kTileOutputs;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      sum[h] = 0.0f;
#pragma unroll
      for (int segment = 0; segment < kSegments; ++segment)
        sum[h] += partial.sum[h][segment][row][output];
    }
  }

  // 16 experts' logits.
  __device__ __forceinline__ void ask_router(int number) {
    const Task task = lists_.tasks[number];
    const auto row_count = static_cast<int>(rows());
    float acc[1][4] = {};
    multiply_segment<1>(at_.normed, min(lane_ / 4, row_count - 1), task.k_tiles, acc);
    float sum[1];
    sum_segments(acc, sum);
    const int row = static_cast<int>(threadIdx.x) / kTileOutputs;
    const int output = task.output + static_cast<int>(threadIdx.x) % kTileOutputs;
    if (row < row_count && output < args_.router.n_out) tell_logit(row, output, sum[0]);
  }
  __device__ __forceinline__ void gate_up(int number, bool shared) {
    const Task task = lists_.tasks[number];
    const int begin = shared ? 0 : lists_.items[task.item].begin;
    const int count = shared ? static_cast<int>(rows()) : lists_.items[task.item].count;
    const int place = begin + min(lane_ / 4, count - 1);
    const int row = shared ? place : lists_.row[place];
    float acc[2][4] = {};
    multiply_segment<2>(at_.normed, row, task.k_tiles, acc);
    float sum[2];
    sum_segments(acc, sum);
    const int i = static_cast<int>(threadIdx.x) / kTileOutputs;
    if (i >= count) return;
    float* to =
        args_.inner + (shared ? rows() * args_.route.top_k * args_.inner_dim + i * args_.shared_dim
                              : (begin + i) * args_.inner_dim);
    to[task.output + static_cast<int>(threadIdx.x) % kTileOutputs] = silu_times(sum[0], sum[1]);
  }
  __device__ __forceinline__ void down(int number, bool shared) {
    const Task task = lists_.tasks[number];
    const int begin = shared ? 0 : lists_.items[task.item].begin;
    const int count = shared ? static_cast<int>(rows()) : lists_.items[task.item].count;
    const int row = begin + min(lane_ / 4, count - 1);
    float acc[1][4] = {};
    multiply_segment<1>(shared ? at_.shared : at_.inner, row, task.k_tiles, acc);
    float sum[1];
    sum_segments(acc, sum);
    const int i = static_cast<int>(threadIdx.x) / kTileOutputs;
    const int output = static_cast<int>(threadIdx.x) % kTileOutputs;
    if (i >= count) return;
    if (shared) {
      lists_.shared_value[task.output][i][output] = sum[0];
      return;
    }
    float& value = lists_.value[task.output][lists_.row[begin + i]][output];
    value = __fmaf_rn(lists_.weight[begin + i], sum[0], value);
  }

  int supply_task_ = 0, supply_first_ = 0;  // what is copied next
  int turn_ = 0;                            // of the partial sums
  int supplied_ = 0, used_ = 0;             // units
};

}  // namespace foresail::cuda::mixing
