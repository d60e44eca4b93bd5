// Every block norms the rows and takes its part of all products, in this order: a few ask the
// router; gate and up of the shared expert; of the chosen ones; down of all. Two warps beside those
// of the products choose the experts meanwhile. Weights come through a ring in shared memory whose
// copies run ahead of everything that they do not depend on: the end of the kernel before (the
// router's and the shared expert's), the meeting of all blocks between gate and up and down.
#include "kernels/cuda/sm90/mixture.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/route.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda {
namespace {

constexpr int kFewExperts = kMostMixedRows * kWarp;  // one a thread of those that choose
using Space = RouteSpace<kMostMixedExperts>;

// args.meeting: launches so far, blocks of them that had their results of gate and up, a gap; then
// the router's results of rows, as two words each: the number, and the number of the launch.
enum MeetingWord : int { kLaunches, kGatedDone, kLogits = 4 };
static_assert(kMeetingWords == kLogits + 2 * kMostMixedRows * kMostMixedExperts);

constexpr int kMixtureThreads = kProductThreads + kMostMixedRows * kWarp;
// Named barriers. 0 is __syncthreads.
enum : int { kBarProducts = 1, kBarChoosers, kBarChosen };

// A warp has a ring of its own, of units: it copies what it will multiply. Measured: deeper rings
// are not faster, smaller units are slower.
constexpr int kStages = 2;
constexpr int kUnitBytes = 6144;
constexpr int kRingBytes = kSegments * kStages * kUnitBytes;
constexpr int kPlainTiles = kUnitBytes / kTileBytes;
constexpr int kGatedTiles = kPlainTiles / 2;  // of gate, and as many of up
constexpr int kTogether = 4;                  // tiles multiplied without a question between
constexpr int kMostTasks = 256;
constexpr int kMostPairs = kWarp;
constexpr int kMostOwnTiles = 4;

// Lanes that store 2q, g meet no bank twice.
constexpr int kPartialStride = kTileOutputs + 4;
struct Partial {
  float sum[2][kSegments][kFewRows][kPartialStride];
};

// 16 results of one expert, or of the shared one or the router, for the rows that want them.
struct Task {
  const std::byte* weight;
  const std::byte* up;  // beside those of gate; null: not gated
  int k_tiles;          // of inputs
  int item;             // of Lists::items, if it is an expert's
  int output;           // the first result; of down: the block's how manieth tile of outputs
};
struct Item {  // a chosen expert
  const std::byte* gate_up;
  const std::byte* down;
  int begin, count;  // of the pairs
};
// Of a row, for kFewExperts.
struct alignas(16) Few {
  unsigned key[kFewExperts];   // ordered like the scores; 0: no expert
  float ranked[kMostChoices];  // scores of the chosen, the best first
  unsigned chosen[kFewExperts / kWarp];
};
struct Lists {
  Item items[kMostPairs];
  int row[kMostPairs];  // of the pairs, ordered by expert
  float weight[kMostPairs];
  int item_count;
  Task tasks[kMostTasks];
  float value[kMostOwnTiles][kMostMixedRows][kTileOutputs];
  float shared_value[kMostOwnTiles][kMostMixedRows][kTileOutputs];
  uint64_t barriers[kSegments][kStages];
  float squares[kMostMixedRows][kSegments];
  Partial partial[2];
  Space spaces[kMostMixedRows];  // of many experts
  Few few[kMostMixedRows];
};

// Places in shared memory: the ring, Lists, rows as two bf16 terms, pointers of all experts.
struct Layout {
  int lists, normed, norm_weights, inner, shared, tables, bytes;
};
Layout layout_of(const MixtureArgs& args) {
  const auto rows = static_cast<int>(args.router.rows);
  const auto hidden = static_cast<int>(args.router.n_in);
  const auto inner = static_cast<int>(args.inner_dim);
  const auto shared = static_cast<int>(args.shared_dim);
  Layout at;
  at.lists = kRingBytes;
  at.normed = at.lists + static_cast<int>(sizeof(Lists) + 127) / 128 * 128;
  at.norm_weights = at.normed + rows * hidden * 4;
  at.inner = at.normed;  // when the others are no longer needed
  at.shared = at.inner + rows * args.route.top_k * inner * 4;
  const int before = at.norm_weights + hidden * 4;
  const int after = at.shared + rows * shared * 4;
  at.tables = std::max(before, after);
  at.bytes = at.tables + args.route.experts * 16;
  return at;
}

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

class Mixer {
 public:
  __device__ Mixer(const MixtureArgs& args, const Layout& at, std::byte* memory)
      : args_(args),
        at_(at),
        memory_(memory),
        lists_(*reinterpret_cast<Lists*>(memory + at_.lists)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  // The warps of the products.
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
    wait_for_previous();
    launch_ = __ldcg(args_.meeting + kLaunches) + 1;
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

  // The others: the experts, and what the block has to do for them.
  __device__ __forceinline__ void choose() {
    fetch_tables();
    if (args_.route.experts <= kFewExperts && args_.route.group_rule == GroupRule::kNone) {
      // Twice: the first time brings the instructions near, since all blocks wait for the second.
#pragma unroll 1
      for (int again = 0; again < 2; ++again) {
        if (again > 0) start_launch();
        choose_of_few(again > 0);
        list_chosen();
        sync_choosers();
      }
    } else {
      start_launch();
      const int row = warp_ - kSegments;
      if (row < rows())
        route_row(
            args_.route, [&](int expert) { return await_logit(row, expert); }, lists_.spaces[row]);
      sync_choosers();
      if (row == 0) order_pairs();
      sync_choosers();
      list_chosen();
    }
    ptx::barrier_arrive(kBarChosen, kMixtureThreads);
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
  __device__ __forceinline__ int64_t rows() const {
    return args_.router.rows;
  }
  __device__ __forceinline__ int hidden() const {
    return static_cast<int>(args_.router.n_in);
  }

  // ---- who waits for whom ----------------------------------------------------------------------

  // The warps of the products.
  __device__ __forceinline__ static void sync() {
    ptx::barrier_sync(kBarProducts, kProductThreads);
  }
  __device__ __forceinline__ static void sync_choosers() {
    ptx::barrier_sync(kBarChoosers, kMostMixedRows * kWarp);
  }
  __device__ __forceinline__ void learn_choice() {
    fetch_values();
    ptx::barrier_sync(kBarChosen, kMixtureThreads);
    count_chosen();
    supply();
  }
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

  // ---- what to do ------------------------------------------------------------------------------

  __device__ __forceinline__ void fetch_tables() {
    auto* tables = reinterpret_cast<const void**>(memory_ + at_.tables);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) - kProductThreads; i < args_.route.experts;
         i += kMostMixedRows * kWarp) {
      tables[2 * i] = args_.experts.gate_up[i];
      tables[2 * i + 1] = args_.experts.down[i];
    }
  }
  // By one warp; lane i works on pair i.
  __device__ __forceinline__ void order_pairs() {
    const int top_k = args_.route.top_k;
    const int pairs = static_cast<int>(args_.router.rows) * top_k;
    const bool is_pair = lane_ < pairs;
    const int row = lane_ / top_k;
    const int id = is_pair ? lists_.spaces[row].best[lane_ % top_k] : 0;
    const float weight = is_pair ? lists_.spaces[row].weight[lane_ % top_k] : 0.0f;
    int place = 0;
    int count = 0;
    bool is_first = is_pair;
#pragma unroll 1
    for (int j = 0; j < pairs; ++j) {
      const int other = __shfl_sync(0xFFFFFFFFu, id, j);
      place += other < id || (other == id && j < lane_);
      is_first &= other != id || j >= lane_;
      count += other == id;
    }
    const unsigned firsts = __ballot_sync(0xFFFFFFFFu, is_first);
    int item = 0;
#pragma unroll 1
    for (int j = 0; j < pairs; ++j)
      item += __shfl_sync(0xFFFFFFFFu, id, j) < id && (firsts >> j & 1) != 0;
    if (is_pair) {
      lists_.row[place] = row;
      lists_.weight[place] = weight;
    }
    if (is_first) {
      const auto* tables = reinterpret_cast<const std::byte* const*>(memory_ + at_.tables);
      lists_.items[item] = {tables[2 * id], tables[2 * id + 1], place, count};
    }
    if (lane_ == 0) lists_.item_count = __popc(firsts);
  }
  // What route_row() and order_pairs() do, for few experts without groups: a lane an expert.
  __device__ __forceinline__ void choose_of_few(bool has_logits) {
    const RouteArgs& route = args_.route;
    const int half = warp_ - kSegments;
    const int e = half * kWarp + lane_;
    float score[kMostMixedRows] = {};
#pragma unroll
    for (int row = 0; row < kMostMixedRows; ++row) {
      if (row >= rows()) break;
      // Both warps know all of them.
      float logits[2] = {};
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i * kWarp + lane_ < route.experts) {
          if (has_logits) logits[i] = await_logit(row, i * kWarp + lane_);
          largest = fmaxf(largest, logits[i]);
        }
      for (int offset = kWarp / 2; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i * kWarp + lane_ < route.experts) {
          logits[i] = route.sigmoid ? 1.0f / (1.0f + expf(-logits[i])) : expf(logits[i] - largest);
          sum += logits[i];
        }
      sum = warp_sum(sum);
      score[row] = half == 0 ? logits[0] : logits[1];
      if (!route.sigmoid) score[row] /= sum;
      unsigned key = 0;
      if (e < route.experts) {
        const float value = score[row] + (route.bias != nullptr ? route.bias[e] : 0.0f);
        key = sorted_key(isnan(value) ? -INFINITY : value);
      }
      lists_.few[row].key[e] = key;
    }
    sync_choosers();
#pragma unroll
    for (int row = 0; row < kMostMixedRows; ++row) {
      if (row >= rows()) break;
      Few& few = lists_.few[row];
      const unsigned own = few.key[e];
      int rank = 0;  // how many are better: larger, or as large and before it
      const auto count = [&](unsigned key, int other) { rank += key + (other < e ? 1 : 0) > own; };
#pragma unroll 4
      for (int i = 0; i < kFewExperts; i += 4) {
        const uint4 keys = *reinterpret_cast<const uint4*>(few.key + i);
        count(keys.x, i);
        count(keys.y, i + 1);
        count(keys.z, i + 2);
        count(keys.w, i + 3);
      }
      const bool chosen = own > 0 && rank < route.top_k;
      if (chosen) few.ranked[rank] = score[row];
      const unsigned all_chosen = __ballot_sync(0xFFFFFFFFu, chosen);
      if (lane_ == 0) few.chosen[half] = all_chosen;
    }
    sync_choosers();
    uint64_t all = 0;
    uint64_t chosen[kMostMixedRows] = {};
#pragma unroll
    for (int row = 0; row < kMostMixedRows; ++row) {
      if (row >= rows()) break;
      const Few& few = lists_.few[row];
      chosen[row] = uint64_t{few.chosen[1]} << kWarp | few.chosen[0];
      all |= chosen[row];
      float chosen_sum = 0.0f;
#pragma unroll 1
      for (int i = 0; i < route.top_k; ++i) chosen_sum += few.ranked[i];
      score[row] =
          (route.normalize ? score[row] / (chosen_sum + 1e-20f) : score[row]) * route.scale;
    }
    if ((all >> e & 1) != 0) {
      const uint64_t before = (uint64_t{1} << e) - 1;
      const auto* tables = reinterpret_cast<const std::byte* const*>(memory_ + at_.tables);
      const int begin = __popcll(chosen[0] & before) + __popcll(chosen[1] & before);
      int place = begin;
#pragma unroll
      for (int row = 0; row < kMostMixedRows; ++row) {
        if ((chosen[row] >> e & 1) == 0) continue;
        lists_.row[place] = row;
        lists_.weight[place++] = score[row];
      }
      lists_.items[__popcll(all & before)] = {tables[2 * e], tables[2 * e + 1], begin,
                                              place - begin};
    }
    if (e == 0) lists_.item_count = __popcll(all);
    sync_choosers();
  }
  // Of so many, dealt to the blocks in turn, `turn` of whom is this one.
  __device__ __forceinline__ static int dealt(int count, int turn) {
    return count > turn ? (count - turn - 1) / static_cast<int>(gridDim.x) + 1 : 0;
  }
  __device__ __forceinline__ static int turn() {
    return static_cast<int>(blockIdx.x);
  }
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
  const MixtureArgs& args_;
  const Layout& at_;
  std::byte* memory_;
  Lists& lists_;
  int warp_, lane_;
  // Ends of the tasks, in their order.
  int router_end_ = 0, shared_gated_end_ = 0, gated_end_ = 0, shared_end_ = 0, down_end_ = 0;
  int known_end_ = 0;
  int supply_task_ = 0, supply_first_ = 0;  // what is copied next
  int supplied_ = 0, used_ = 0;             // units
  int turn_ = 0;                            // of the partial sums
  int launch_ = 0;                          // counted over all calls
};

__global__ void __launch_bounds__(kMixtureThreads, 2)
    mixture_kernel(const __grid_constant__ MixtureArgs args, const __grid_constant__ Layout at) {
  extern __shared__ __align__(128) std::byte space[];
  let_next_start();
  Mixer mixer(args, at, space);
  if (threadIdx.x < kProductThreads)
    mixer.run();
  else
    mixer.choose();
}

}  // namespace

bool fits_mixture(const MixtureArgs& args) {
  constexpr int kMostBytes = 227 << 10;  // of a block
  const auto fits = [](int64_t n_in) {
    return n_in % kTileInputs == 0 && n_in >= kSegments * kTileInputs;
  };
  const int64_t blocks = processor_count();
  const int64_t pairs = args.router.rows * args.route.top_k;
  const int64_t own = (tile_count(args.router.n_in) + blocks - 1) / blocks;
  const auto dealt = [&](int64_t count) { return (count + blocks - 1) / blocks; };
  const int64_t tasks = 1 + dealt(tile_count(args.shared_dim)) + own +
                        dealt(pairs * tile_count(args.inner_dim)) + own * pairs;
  return args.router.rows <= kMostMixedRows && args.router.norm_weight != nullptr &&
         reinterpret_cast<uintptr_t>(args.router.norm_weight) % 16 == 0 && pairs <= kMostPairs &&
         args.route.experts <= kMostMixedExperts && own <= kMostOwnTiles && tasks <= kMostTasks &&
         fits(args.router.n_in) && fits(args.inner_dim) &&
         (args.shared_gate_up == nullptr || fits(args.shared_dim)) &&
         tile_count(args.router.n_out) <= blocks && layout_of(args).bytes <= kMostBytes;
}

void mixture(cudaStream_t stream, const MixtureArgs& args) {
  const Layout at = layout_of(args);
  // One block on every multiprocessor: all run at once.
  launch_early(stream, dim3(static_cast<unsigned>(processor_count())), kMixtureThreads,
               static_cast<size_t>(at.bytes), mixture_kernel, args, at);
}

}  // namespace foresail::cuda
