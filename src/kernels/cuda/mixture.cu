#include "kernels/cuda/mixture.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/route.cuh"

namespace foresail::cuda {
namespace {

using Space = RouteSpace<kFewExperts>;

// The pairs of all rows in order, by one block; thread i works on pair i.
__device__ void order_chosen(const ChooseArgs& args, const Space* spaces) {
  __shared__ int ids[kFewPairs];
  __shared__ bool is_first[kFewPairs];
  const int top_k = args.route.top_k;
  const int pairs = static_cast<int>(args.route.rows) * top_k;
  const int i = static_cast<int>(threadIdx.x);
  int place = 0;
  int count = 0;
  if (i < pairs) ids[i] = spaces[i / top_k].best[i % top_k];
  __syncthreads();
  if (i < pairs) {
    bool first = true;
    for (int j = 0; j < pairs; ++j) {
      const bool same = ids[j] == ids[i];
      place += ids[j] < ids[i] || (same && j < i);
      first &= !same || j >= i;
      count += same;
    }
    is_first[i] = first;
    args.pairs.row[place] = i / top_k;
    args.pairs.weight[place] = spaces[i / top_k].weight[i % top_k];
  }
  __syncthreads();
  int tile = 0;
  int tiles = 0;
  for (int j = 0; j < pairs; ++j) {
    tile += i < pairs && is_first[j] && ids[j] < ids[i];
    tiles += is_first[j];
  }
  if (i < pairs && is_first[i])
    args.pairs.tiles[tile] = {ids[i], place, count, args.experts.gate_up[ids[i]],
                              args.experts.down[ids[i]]};
  if (i >= tiles && i < args.pairs.tile_limit) args.pairs.tiles[i] = {};
}

__device__ __forceinline__ int add_acquired_released(int32_t* to, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(value)
               : "memory");
  return before;
}

// Block: 16 experts' logits, or 16 results of the shared expert. The last of the former to end
// routes all rows, a warp each, while the latter still run. Rows are normed in the block or come
// normed.
template <bool kNormed>
__global__ void __launch_bounds__(kProductThreads, 2)
    choose_kernel(const __grid_constant__ ChooseArgs args) {
  extern __shared__ float4 memory[];  // normed rows, then a Space for each row
  __shared__ bool is_last;
  let_next_start();
  auto* normed = reinterpret_cast<float*>(memory);
  const auto router_blocks = static_cast<int>(tile_count(args.router.n_out));
  const auto block = static_cast<int>(blockIdx.x);
  Part part;
  if (block >= router_blocks) {
    find_part(args.shared, block - router_blocks, 0, 0, kFewRows, part);
    stream_product<1, false, true, kNormed, true>(args.shared, part, normed);
    return;
  }
  find_part(args.router, block, 0, 0, kFewRows, part);
  stream_product<1, false, true, kNormed, false>(args.router, part, normed);
  if constexpr (kNormed)
    for (int row = block; row < args.router.rows; row += router_blocks)
      for (int i = threadIdx.x; i < args.router.n_in; i += kProductThreads)
        args.normed[row * args.normed_stride + i] =
            normed[row * normed_stride(args.router.n_in) + i];
  __syncthreads();
  if (threadIdx.x == 0) is_last = add_acquired_released(args.arrived, 1) == router_blocks - 1;
  __syncthreads();
  if (!is_last) return;
  auto* spaces = reinterpret_cast<Space*>(memory);
  const int warp = threadIdx.x / kWarp;
  if (warp < args.route.rows)
    route_row(args.route, args.route.logits + warp * args.route.stride, spaces[warp]);
  __syncthreads();
  order_chosen(args, spaces);
  if (threadIdx.x == 0) *args.arrived = 0;
}

constexpr int kUnitTiles = 16;  // of inputs: what a warp holds of a matrix at once
constexpr int kHalfUnit = kUnitTiles / 2;
// Inputs of a unit in shared memory, floats from one row to the next: see normed_stride().
constexpr int kUnitStride = kUnitTiles * kTileInputs + kTileInputs;

// Some inputs of one warp's segment of one matrix.
struct Unit {
  const uint4* weight;  // lane's part of the first tile of the outputs
  const float* rows;    // of the matrix's rows
  int n_in;
  int row_count;
  int item;  // -1: the shared expert
  int k;     // first tile; all end at k_end
  int k_end;
};

struct MixSpace {
  float partial[2][kSegments][kFewRows][kTileOutputs];
  float value[kFewRows][kTileOutputs];
  float shared_value[kFewRows][kTileOutputs];
  ExpertTile tiles[kFewPairs];
  int row[kFewPairs];
  float weight[kFewPairs];
};

// Sixteen bytes to shared memory, or zeros.
__device__ __forceinline__ void copy_later(float* to, const float* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(present ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void end_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All but the latest group are there, for the lanes that asked for them.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group 1;" ::: "memory");
}

class Mixer {
 public:
  __device__ Mixer(const MixArgs& args, MixSpace& space, float* staged)
      : args_(args), space_(space), warp_(threadIdx.x / kWarp), lane_(threadIdx.x % kWarp) {
    const auto rows = static_cast<int>(args.rows);
    staged_ = staged + warp_ * 2 * rows * kUnitStride;
    stage_size_ = rows * kUnitStride;
  }

  __device__ __forceinline__ void run() {
    const bool has_shared = args_.shared_down != nullptr;
    Unit unit;
    if (has_shared) {
      unit = first_of(-1);
      load_weights(unit, 0);
      load_weights(unit, kHalfUnit);
    }
    wait_for_previous();  // the shared expert's weights are nobody's result
    fetch();
    if (!has_shared) {
      unit = first_of(0);
      load_weights(unit, 0);
      load_weights(unit, kHalfUnit);
    }
    stage_rows(unit, 0);
    end_of_copies();
    for (int stage = 0;; stage ^= 1) {
      const Unit next = after(unit);
      if (next.row_count > 0) stage_rows(next, stage ^ 1);
      end_of_copies();
      wait_for_copies();
      __syncwarp();
      multiply_half(unit, stage, 0);
      load_weights(next, 0);
      multiply_half(unit, stage, kHalfUnit);
      load_weights(next, kHalfUnit);
      __syncwarp();  // the stage may be written again
      if (next.item != unit.item || next.row_count == 0) finish(unit);
      if (next.row_count == 0) break;
      unit = next;
    }
    __syncthreads();
    const int row = static_cast<int>(threadIdx.x) / kTileOutputs;
    const int64_t output = first_output() + threadIdx.x % kTileOutputs;
    if (row >= args_.rows || output >= args_.n_out) return;
    float value = space_.value[row][threadIdx.x % kTileOutputs];
    if (has_shared) value = __fadd_rn(value, space_.shared_value[row][threadIdx.x % kTileOutputs]);
    args_.out[row * args_.out_stride + output] = value;
  }

 private:
  __device__ int64_t first_output() const { return int64_t{blockIdx.x} * kTileOutputs; }

  // The lists, and what the rows hold before.
  __device__ __forceinline__ void fetch() {
    const int i = static_cast<int>(threadIdx.x);
    if (i < args_.pairs.tile_limit) space_.tiles[i] = args_.pairs.tiles[i];
    if (i < args_.pairs.count) {
      space_.row[i] = args_.pairs.row[i];
      space_.weight[i] = args_.pairs.weight[i];
    }
    const int row = i / kTileOutputs;
    const int64_t output = first_output() + i % kTileOutputs;
    if (row < args_.rows)
      space_.value[row][i % kTileOutputs] =
          output < args_.n_out ? args_.out[row * args_.out_stride + output] : 0.0f;
    __syncthreads();
  }

  // row_count 0: there is no such item.
  __device__ __forceinline__ Unit first_of(int item) const {
    Unit unit{};
    unit.item = item;
    const void* weight = args_.shared_down;
    if (item < 0) {
      unit.rows = args_.shared;
      unit.n_in = static_cast<int>(args_.shared_dim);
      unit.row_count = static_cast<int>(args_.rows);
    } else {
      if (item >= args_.pairs.tile_limit) return unit;
      const ExpertTile& tile = space_.tiles[item];
      weight = tile.down;
      unit.n_in = static_cast<int>(args_.inner_dim);
      unit.rows = args_.inner + int64_t{tile.begin} * unit.n_in;
      unit.row_count = tile.count;
    }
    const int k_tiles = static_cast<int>(tile_count(unit.n_in));
    unit.weight = static_cast<const uint4*>(weight) + int64_t{blockIdx.x} * k_tiles * kWarp + lane_;
    unit.k = segment_begin(warp_, k_tiles);
    unit.k_end = segment_begin(warp_ + 1, k_tiles);
    return unit;
  }
  // The unit after this one: of the same matrix, or of the next.
  __device__ __forceinline__ Unit after(const Unit& unit) const {
    if (unit.k + kUnitTiles >= unit.k_end) return first_of(unit.item + 1);
    Unit next = unit;
    next.k += kUnitTiles;
    return next;
  }

  __device__ __forceinline__ void load_weights(const Unit& unit, int first) {
    if (unit.row_count == 0) return;
#pragma unroll
    for (int i = 0; i < kHalfUnit; ++i)
      if (unit.k + first + i < unit.k_end)
        a_[first + i] = __ldcs(unit.weight + int64_t{unit.k + first + i} * kWarp);
  }
  __device__ __forceinline__ void stage_rows(const Unit& unit, int stage) {
    const int quads = min(kUnitTiles, unit.k_end - unit.k) * 4;
    for (int row = 0; row < unit.row_count; ++row)
      for (int i = lane_; i < quads; i += kWarp) {
        const int input = unit.k * kTileInputs + 4 * i;
        const bool present = input < unit.n_in;
        copy_later(staged_ + stage * stage_size_ + row * kUnitStride + 4 * i,
                   unit.rows + int64_t{row} * unit.n_in + (present ? input : 0), present);
      }
  }
  __device__ __forceinline__ void multiply_half(const Unit& unit, int stage, int first) {
    const int g = lane_ / 4;
    const int q = lane_ % 4;
    const float* row =
        staged_ + stage * stage_size_ + min(g, unit.row_count - 1) * kUnitStride + 4 * q;
#pragma unroll
    for (int i = 0; i < kHalfUnit; ++i) {
      if (unit.k + first + i >= unit.k_end) break;
      const float4 x = *reinterpret_cast<const float4*>(row + (first + i) * kTileInputs);
      multiply<false>(acc_, a_[first + i], split(x));
    }
  }
  // The sums of an item, once every warp has its own.
  __device__ __forceinline__ void finish(const Unit& unit) {
    auto& partial = space_.partial[unit.item & 1];
    const int g = lane_ / 4;
    const int q = lane_ % 4;
    partial[warp_][2 * q][g] = acc_[0];
    partial[warp_][2 * q + 1][g] = acc_[1];
    partial[warp_][2 * q][g + 8] = acc_[2];
    partial[warp_][2 * q + 1][g + 8] = acc_[3];
#pragma unroll
    for (float& sum : acc_) sum = 0.0f;
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x) / kTileOutputs;
    const int output = static_cast<int>(threadIdx.x) % kTileOutputs;
    if (i >= unit.row_count) return;
    float sum = 0.0f;
#pragma unroll
    for (int segment = 0; segment < kSegments; ++segment) sum += partial[segment][i][output];
    if (unit.item < 0) {
      space_.shared_value[i][output] = sum;
      return;
    }
    const int pair = space_.tiles[unit.item].begin + i;
    float& value = space_.value[space_.row[pair]][output];
    value = __fmaf_rn(space_.weight[pair], sum, value);
  }

  const MixArgs& args_;
  MixSpace& space_;
  float* staged_;
  int stage_size_;
  int warp_;
  int lane_;
  uint4 a_[kUnitTiles];
  float acc_[4] = {};
};

// Block: 16 outputs of all rows, through every chosen expert and the shared one.
__global__ void __launch_bounds__(kProductThreads, 2)
    mix_kernel(const __grid_constant__ MixArgs args) {
  extern __shared__ float4 staged[];
  __shared__ MixSpace space;
  let_next_start();
  Mixer(args, space, reinterpret_cast<float*>(staged)).run();
}

}  // namespace

void choose(cudaStream_t stream, const ChooseArgs& args) {
  const bool norms = args.router.norm_weight != nullptr;
  const int64_t blocks = tile_count(args.router.n_out) + tile_count(args.shared.n_out / 2);
  const int64_t space_bytes = args.route.rows * static_cast<int64_t>(sizeof(Space));
  const int64_t rows_bytes = norms ? normed_bytes(args.router.rows, args.router.n_in) : 0;
  launch_early(stream, dim3(static_cast<unsigned>(blocks)), kProductThreads,
               static_cast<size_t>(std::max(space_bytes, rows_bytes)),
               norms ? choose_kernel<true> : choose_kernel<false>, args);
}

void mix(cudaStream_t stream, const MixArgs& args) {
  const size_t staged_bytes = sizeof(float) * 2 * kSegments * kUnitStride * args.rows;
  launch_early(stream, dim3(static_cast<unsigned>(tile_count(args.n_out))), kProductThreads,
               staged_bytes, mix_kernel, args);
}

}  // namespace foresail::cuda
