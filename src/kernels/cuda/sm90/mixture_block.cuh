// What both kinds of warps of the mixture kernel have of their block: its parameters and memory,
// the router's results, which blocks tell each other, and the tasks that are its own.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/mixture_memory.cuh"

namespace foresail::cuda::mixing {

class MixtureBlock {
 public:
  __device__ MixtureBlock(const MixtureArgs& args, const Layout& at, std::byte* memory)
      : args_(args),
        at_(at),
        memory_(memory),
        lists_(*reinterpret_cast<Lists*>(memory + at_.lists)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

 protected:
  __device__ __forceinline__ int64_t rows() const { return args_.router.rows; }
  __device__ __forceinline__ int hidden() const { return static_cast<int>(args_.router.n_in); }

  // ---- the router's results --------------------------------------------------------------------

  __device__ __forceinline__ void start_launch() {
    wait_for_previous();
    launch_ = __ldcg(args_.meeting + kLaunches) + 1;
  }
  __device__ __forceinline__ unsigned long long* logit(int row, int expert) const {
    return reinterpret_cast<unsigned long long*>(args_.meeting + kLogits) +
           row * kMostMixedExperts + expert;
  }
  // A number and the launch that it is of come together: nothing else has to be waited for.
  __device__ __forceinline__ void tell_logit(int row, int expert, float value) const {
    const uint64_t word = uint64_t{static_cast<uint32_t>(launch_)} << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(logit(row, expert)), "l"(word)
                 : "memory");
  }
  __device__ __forceinline__ float await_logit(int row, int expert) const {
    uint64_t word;
    do {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                   : "=l"(word)
                   : "l"(logit(row, expert))
                   : "memory");
    } while (static_cast<int>(word >> 32) != launch_);
    return __uint_as_float(static_cast<uint32_t>(word));
  }

  // ---- what to do ------------------------------------------------------------------------------

  // Of so many, dealt to the blocks in turn, `turn` of whom is this one.
  __device__ __forceinline__ static int dealt(int count, int turn) {
    return count > turn ? (count - turn - 1) / static_cast<int>(gridDim.x) + 1 : 0;
  }
  __device__ __forceinline__ static int turn() { return static_cast<int>(blockIdx.x); }
  // The shared expert's gate and up are dealt from the last block on: the first ones ask the
  // router.
  __device__ __forceinline__ static int shared_turn() {
    return static_cast<int>(gridDim.x - 1 - blockIdx.x);
  }
  __device__ __forceinline__ int own_outputs() const {
    return dealt(hidden() / kTileInputs, turn());
  }
  // The tasks that no choice decides.
  __device__ __forceinline__ void count_fixed() {
    router_end_ = turn() < tile_count(args_.router.n_out) ? 1 : 0;
    shared_gated_end_ =
        router_end_ + dealt(static_cast<int>(args_.shared_dim) / kTileInputs, shared_turn());
    gated_end_ = known_end_ = shared_gated_end_;
  }
  __device__ __forceinline__ void count_chosen() {
    const int items = lists_.item_count;
    const int own = own_outputs();
    gated_end_ = shared_gated_end_ +
                 dealt(items * (static_cast<int>(args_.inner_dim) / kTileInputs), turn());
    shared_end_ = gated_end_ + (args_.shared_down != nullptr ? own : 0);
    down_end_ = shared_end_ + own * items;
    known_end_ = down_end_;
  }
  __device__ __forceinline__ Task gated_task(const void* weight, int64_t inner, int tile,
                                             int item) const {
    const int64_t k_tiles = hidden() / kTileInputs;
    const auto* from = static_cast<const std::byte*>(weight) + tile * k_tiles * kTileBytes;
    return {from, from + inner / kTileOutputs * k_tiles * kTileBytes, static_cast<int>(k_tiles),
            item, tile * kTileOutputs};
  }
  __device__ __forceinline__ Task down_task(const void* weight, int64_t inner, int own,
                                            int item) const {
    const int64_t k_tiles = inner / kTileInputs;
    const auto tile = static_cast<int>(blockIdx.x + own * gridDim.x);
    return {static_cast<const std::byte*>(weight) + tile * k_tiles * kTileBytes, nullptr,
            static_cast<int>(k_tiles), item, own};
  }
  // By the choosers. Down: the block's tiles of outputs through the shared expert, and through the
  // others, one tile after the other.
  __device__ __forceinline__ void list_chosen() {
    count_fixed();
    count_chosen();
    const int k_inner = static_cast<int>(args_.inner_dim) / kTileInputs;
    const int items = lists_.item_count;
    const int chooser = static_cast<int>(threadIdx.x) - kProductThreads;
#pragma unroll 1
    for (int i = shared_gated_end_ + chooser; i < down_end_; i += kMostMixedRows * kWarp) {
      Task& task = lists_.tasks[i];
      if (i < gated_end_) {
        const int tile = turn() + (i - shared_gated_end_) * static_cast<int>(gridDim.x);
        const int item = tile / k_inner;
        task = gated_task(lists_.items[item].gate_up, args_.inner_dim, tile % k_inner, item);
      } else if (i < shared_end_) {
        task = down_task(args_.shared_down, args_.shared_dim, i - gated_end_, 0);
      } else {
        const int own = (i - shared_end_) / items;
        const int item = (i - shared_end_) % items;
        task = down_task(lists_.items[item].down, args_.inner_dim, own, item);
      }
    }
  }

  const MixtureArgs& args_;
  const Layout& at_;
  std::byte* memory_;
  Lists& lists_;
  int warp_, lane_;
  // Ends of the tasks, in their order.
  int router_end_ = 0, shared_gated_end_ = 0, gated_end_ = 0, shared_end_ = 0, down_end_ = 0;
  int known_end_ = 0;
  int launch_ = 0;  // counted over all calls
};

}  // namespace foresail::cuda::mixing
