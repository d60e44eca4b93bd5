// A few blocks norm the rows and ask the router while the others wait. Then every block chooses the
// experts for itself and takes its part of all products. Weights come through a ring in shared
// memory whose copies run ahead of everything that they do not depend on: the end of the kernel
// before (the shared expert's), the routing, the meeting of all blocks between gate and up and
// down.
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

constexpr int kMostMixedRows = 2;
constexpr int kMostMixedExperts = 384;
using Space = RouteSpace<kMostMixedExperts>;

// Of args.meeting.
enum MeetingWord : int { kArrived, kTurn, kRouted };

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

// 16 results of one expert, or of the shared one, for the rows that want them.
struct Task {
  const std::byte* weight;
  int item;    // of Lists::items; -1: the shared expert
  int output;  // the first result; of down: the block's how manieth tile of outputs
};
struct Item {  // a chosen expert
  const std::byte* gate_up;
  const std::byte* down;
  int begin, count;  // of the pairs
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
  union {
    Partial partial[2];
    Space spaces[kMostMixedRows];
  };
};

// Places in shared memory: the ring, Lists, rows as two bf16 terms, pointers of all experts.
struct Layout {
  int lists, normed, inner, shared, tables, bytes;
};
Layout layout_of(const MixtureArgs& args) {
  const auto rows = static_cast<int>(args.router.rows);
  const auto hidden = static_cast<int>(args.router.n_in);
  const auto inner = static_cast<int>(args.inner_dim);
  const auto shared = static_cast<int>(args.shared_dim);
  Layout at;
  at.lists = kRingBytes;
  at.normed = at.lists + static_cast<int>(sizeof(Lists) + 127) / 128 * 128;
  at.inner = at.normed;  // when the others are no longer needed
  at.shared = at.inner + rows * args.route.top_k * inner * 4;
  const auto before = static_cast<int>(normed_bytes(rows, hidden));
  const int after = at.shared - at.normed + rows * shared * 4;
  at.tables = at.normed + (before > after ? before : after);
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

  __device__ __forceinline__ void run() {
    if (blockIdx.x < tile_count(args_.router.n_out)) ask_router();
    if (lane_ == 0) {
      for (int stage = 0; stage < kStages; ++stage) ptx::mbarrier_init(barrier(stage), 1);
      ptx::fence_mbarrier_init();
    }
    fetch_tables();
    list_gated(true, static_cast<int>(args_.shared_dim) / kTileInputs);
    shared_gated_end_ = gated_end_;
    __syncthreads();
    supply();  // the shared expert's weights are nobody's result
    wait_for_previous();
    const auto routers = static_cast<int>(tile_count(args_.router.n_out));
    if (threadIdx.x == 0)
      while (ptx::load_acquire(args_.meeting + kRouted) < routers) {
      }
    __syncthreads();
    const auto rows = static_cast<int>(args_.router.rows);
    if (warp_ < rows)
      route_row(args_.route, args_.route.logits + warp_ * args_.route.stride, lists_.spaces[warp_]);
    else
      stage(at_.normed, args_.normed, rows * args_.router.n_in, (warp_ - rows) * kWarp + lane_,
            kProductThreads - rows * kWarp);
    __syncthreads();
    if (warp_ == 0) order_pairs();
    __syncthreads();
    list_gated(false, lists_.item_count * static_cast<int>(args_.inner_dim) / kTileInputs);
    list_down();
    __syncthreads();
    supply();
    fetch_values();
#pragma unroll 1
    for (int task = 0; task < gated_end_; ++task) gate_up(task);
    __syncthreads();
    meet();
    if (down_end_ == gated_end_) return;
    const auto thread = static_cast<int>(threadIdx.x);
    stage(at_.inner, args_.inner, rows * args_.route.top_k * args_.inner_dim, thread,
          kProductThreads);
    if (shared_end_ > gated_end_)
      stage(at_.shared, args_.shared_inner, rows * args_.shared_dim, thread, kProductThreads);
    __syncthreads();
#pragma unroll 1
    for (int task = gated_end_; task < down_end_; ++task) down(task);
    __syncthreads();
    store_values();
  }

 private:
  // The warp's inputs, in tiles.
  struct Segment {
    int first, count;
  };
  __device__ __forceinline__ Segment segment_of(int64_t n_in) const {
    const int k_tiles = static_cast<int>(n_in) / kTileInputs;
    const int first = segment_begin(warp_, k_tiles);
    return {first, segment_begin(warp_ + 1, k_tiles) - first};
  }
  __device__ __forceinline__ uint32_t barrier(int stage) const {
    return ptx::shared_address(&lists_.barriers[warp_][stage]);
  }

  // ---- what to do ------------------------------------------------------------------------------

  __device__ __forceinline__ void fetch_tables() {
    auto* tables = reinterpret_cast<const void**>(memory_ + at_.tables);
#pragma unroll 1
    for (int i = threadIdx.x; i < args_.route.experts; i += kProductThreads) {
      tables[2 * i] = args_.experts.gate_up[i];
      tables[2 * i + 1] = args_.experts.down[i];
    }
  }
  // 16 experts' logits, and norms of rows for all blocks.
  __device__ __forceinline__ void ask_router() {
    const auto routers = static_cast<int>(tile_count(args_.router.n_out));
    const auto block = static_cast<int>(blockIdx.x);
    auto* normed = reinterpret_cast<float*>(memory_ + at_.normed);
    Part part;
    find_part(args_.router, block, 0, 0, kFewRows, part);
    stream_product<1, false, true, true, Tiles::kOne>(args_.router, part, normed);
    const auto n_in = static_cast<int>(args_.router.n_in);
#pragma unroll 1
    for (int row = block; row < args_.router.rows; row += routers)
      for (int i = threadIdx.x; i < n_in; i += kProductThreads)
        args_.normed[row * n_in + i] = normed[row * normed_stride(n_in) + i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    ptx::add_release(args_.meeting + kRouted, 1);
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
  // Of so many, dealt to the blocks by turns.
  __device__ __forceinline__ static int dealt(int count) {
    const auto block = static_cast<int>(blockIdx.x);
    return count > block ? (count - block - 1) / static_cast<int>(gridDim.x) + 1 : 0;
  }
  // The next of so many tasks of gate and up.
  __device__ __forceinline__ void list_gated(bool shared, int count) {
    const int first = gated_end_;
    const int k_hidden = static_cast<int>(args_.router.n_in) / kTileInputs;
    const int k_inner = static_cast<int>(args_.inner_dim) / kTileInputs;
    gated_end_ = first + dealt(count);
#pragma unroll 1
    for (int i = first + static_cast<int>(threadIdx.x); i < gated_end_; i += kProductThreads) {
      int tile = static_cast<int>(blockIdx.x + (i - first) * gridDim.x);
      Task task{static_cast<const std::byte*>(args_.shared_gate_up), -1, 0};
      if (!shared) {
        task.item = tile / k_inner;
        tile %= k_inner;
        task.weight = lists_.items[task.item].gate_up;
      }
      task.weight += int64_t{tile} * k_hidden * kTileBytes;
      task.output = tile * kTileOutputs;
      lists_.tasks[i] = task;
    }
  }
  // The block's tiles of outputs: through the shared expert, and through the others, one tile after
  // the other.
  __device__ __forceinline__ void list_down() {
    const int items = lists_.item_count;
    const int own = dealt(static_cast<int>(args_.router.n_in) / kTileInputs);
    shared_end_ = gated_end_ + (args_.shared_down != nullptr ? own : 0);
    down_end_ = shared_end_ + own * items;
#pragma unroll 1
    for (int i = gated_end_ + static_cast<int>(threadIdx.x); i < down_end_; i += kProductThreads) {
      Task task{static_cast<const std::byte*>(args_.shared_down), -1, i - gated_end_};
      int64_t n_in = args_.shared_dim;
      if (i >= shared_end_) {
        task.item = (i - shared_end_) % items;
        task.output = (i - shared_end_) / items;
        task.weight = lists_.items[task.item].down;
        n_in = args_.inner_dim;
      }
      const auto tile = static_cast<int>(blockIdx.x + task.output * gridDim.x);
      task.weight += tile * (n_in / kTileInputs) * kTileBytes;
      lists_.tasks[i] = task;
    }
  }
  // Rows without gaps, as terms, into shared memory.
  __device__ __forceinline__ void stage(int to, const float* from, int64_t floats, int thread,
                                        int threads) {
    auto* terms = reinterpret_cast<uint4*>(memory_ + to);
    const auto* fours = reinterpret_cast<const float4*>(from);
    const auto count = static_cast<int>(floats / 4);
    constexpr int kLoads = 4;
#pragma unroll 1
    for (int first = thread; first < count; first += kLoads * threads) {
      float4 x[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        if (first + i * threads < count) x[i] = __ldcg(fours + first + i * threads);
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        if (first + i * threads < count) terms[first + i * threads] = packed_terms(x[i]);
    }
  }
  template <typename Body>
  __device__ __forceinline__ void for_values(Body&& body) {
    const auto rows = static_cast<int>(args_.router.rows);
    const auto output = static_cast<int>(threadIdx.x) % kTileOutputs;
    const auto blocks = static_cast<int>(gridDim.x);
    const auto tiles = static_cast<int>(tile_count(args_.router.n_in));
#pragma unroll 1
    for (int i = threadIdx.x / kTileOutputs; i < kMostOwnTiles * rows;
         i += kProductThreads / kTileOutputs) {
      const int tile = static_cast<int>(blockIdx.x) + i / rows * blocks;
      if (tile < tiles)
        body(i / rows, i % rows, output,
             args_.out + i % rows * args_.out_stride + tile * kTileOutputs + output);
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
  // All blocks have their results of gate and up.
  __device__ __forceinline__ void meet() {
    if (threadIdx.x == 0) {
      const int turn = ptx::load_acquire(args_.meeting + kTurn);
      __threadfence();
      const unsigned last = gridDim.x - 1;
      if (atomicInc(reinterpret_cast<unsigned*>(args_.meeting + kArrived), last) == last) {
        args_.meeting[kRouted] = 0;  // every block has seen it
        __threadfence();
        ptx::add_release(args_.meeting + kTurn, 1);
      } else if (down_end_ > gated_end_) {
        while (ptx::load_acquire(args_.meeting + kTurn) == turn) {
        }
      }
    }
    __syncthreads();
  }

  // ---- products --------------------------------------------------------------------------------

  // Copies units until the ring is full.
  __device__ __forceinline__ void supply() {
    const int end = max(gated_end_, down_end_);
#pragma unroll 1
    while (supplied_ - used_ < kStages && supply_task_ < end) {
      const bool gated = supply_task_ < gated_end_;
      const bool shared = supply_task_ < shared_end_;
      const Segment segment = segment_of(gated    ? args_.router.n_in
                                         : shared ? args_.shared_dim
                                                  : args_.inner_dim);
      const int most = gated ? kGatedTiles : kPlainTiles;
      if (lane_ == 0) {
        const int stage = supplied_ % kStages;
        const uint32_t bytes = min(most, segment.count - supply_first_) * kTileBytes;
        const std::byte* from =
            lists_.tasks[supply_task_].weight + (segment.first + supply_first_) * kTileBytes;
        const uint32_t to = ptx::shared_address(memory_) + (warp_ * kStages + stage) * kUnitBytes;
        const uint64_t policy = ptx::evict_first_policy();
        ptx::mbarrier_arrive_expect(barrier(stage), gated ? 2 * bytes : bytes);
        copy_bulk(to, from, bytes, barrier(stage), policy);
        if (gated)
          copy_bulk(to + kUnitBytes / 2,
                    from + (supply_task_ < shared_gated_end_ ? args_.shared_dim : args_.inner_dim) *
                               args_.router.n_in * 2,
                    bytes, barrier(stage), policy);
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
  __device__ __forceinline__ void multiply_segment(int place, int row, int64_t n_in,
                                                   float (&acc)[kHalves][4]) {
    constexpr int kMost = kPlainTiles / kHalves;
    const Segment segment = segment_of(n_in);
    const int count = segment.count;
    const auto* x = reinterpret_cast<const uint4*>(memory_ + place) +
                    row * (static_cast<int>(n_in) / 4) + segment.first * 4 + lane_ % 4;
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
    __syncthreads();
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

  __device__ __forceinline__ void gate_up(int number) {
    const Task& task = lists_.tasks[number];
    const bool shared = task.item < 0;
    const int begin = shared ? 0 : lists_.items[task.item].begin;
    const int count = shared ? static_cast<int>(args_.router.rows) : lists_.items[task.item].count;
    const int place = begin + min(lane_ / 4, count - 1);
    const int row = shared ? place : lists_.row[place];
    float acc[2][4] = {};
    multiply_segment<2>(at_.normed, row, args_.router.n_in, acc);
    float sum[2];
    sum_segments(acc, sum);
    const int i = static_cast<int>(threadIdx.x) / kTileOutputs;
    if (i >= count) return;
    float* to = shared ? args_.shared_inner + i * args_.shared_dim
                       : args_.inner + (begin + i) * args_.inner_dim;
    to[task.output + static_cast<int>(threadIdx.x) % kTileOutputs] = silu_times(sum[0], sum[1]);
  }
  __device__ __forceinline__ void down(int number) {
    const Task& task = lists_.tasks[number];
    const bool shared = task.item < 0;
    const int begin = shared ? 0 : lists_.items[task.item].begin;
    const int count = shared ? static_cast<int>(args_.router.rows) : lists_.items[task.item].count;
    const int row = begin + min(lane_ / 4, count - 1);
    float acc[1][4] = {};
    multiply_segment<1>(shared ? at_.shared : at_.inner, row,
                        shared ? args_.shared_dim : args_.inner_dim, acc);
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
  // Tasks: gate and up of the shared expert, of the others, down of the shared one, of the others.
  int shared_gated_end_ = 0, gated_end_ = 0, shared_end_ = 0, down_end_ = 0;
  int supply_task_ = 0, supply_first_ = 0;  // what is copied next
  int supplied_ = 0, used_ = 0;             // units
  int turn_ = 0;                            // of the partial sums
};

__global__ void __launch_bounds__(kProductThreads, 2)
    mixture_kernel(const __grid_constant__ MixtureArgs args, const __grid_constant__ Layout at) {
  extern __shared__ __align__(128) std::byte space[];
  let_next_start();
  Mixer(args, at, space).run();
}

// One block on every multiprocessor: all run at once.
int block_count() {
  static const int count = [] {
    int device = 0;
    int multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    return multiprocessors;
  }();
  return count;
}

}  // namespace

bool fits_mixture(const MixtureArgs& args) {
  constexpr int kMostBytes = (227 - 6) << 10;  // of a block, less what the kernel names itself
  const auto fits = [](int64_t n_in) {
    return n_in % kTileInputs == 0 && n_in >= kSegments * kTileInputs;
  };
  const int64_t blocks = block_count();
  const int64_t pairs = args.router.rows * args.route.top_k;
  const int64_t own = (tile_count(args.router.n_in) + blocks - 1) / blocks;
  const auto dealt = [&](int64_t count) { return (count + blocks - 1) / blocks; };
  const int64_t tasks = dealt(tile_count(args.shared_dim)) +
                        dealt(pairs * tile_count(args.inner_dim)) + own + own * pairs;
  return args.router.rows <= kMostMixedRows && args.router.norm_weight != nullptr &&
         pairs <= kMostPairs && args.route.experts <= kMostMixedExperts && own <= kMostOwnTiles &&
         tasks <= kMostTasks && fits(args.router.n_in) && fits(args.inner_dim) &&
         (args.shared_gate_up == nullptr || fits(args.shared_dim)) &&
         tile_count(args.router.n_out) <= blocks && layout_of(args).bytes <= kMostBytes;
}

void mixture(cudaStream_t stream, const MixtureArgs& args) {
  const Layout at = layout_of(args);
  launch_early(stream, dim3(static_cast<unsigned>(block_count())), kProductThreads,
               static_cast<size_t>(at.bytes), mixture_kernel, args, at);
}

}  // namespace foresail::cuda
