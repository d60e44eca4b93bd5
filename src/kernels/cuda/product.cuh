// What the product kernels share (gemm.h): the terms of a row, the parts of a matrix, the end of a
// result, and the body of the kernels for few rows.
#pragma once

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm.h"

namespace foresail::cuda {

constexpr int kSegments = 8;
constexpr int kProductThreads = kSegments * kWarp;  // one warp a segment

__device__ __forceinline__ int segment_begin(int segment, int k_tiles) {
  return segment * k_tiles / kSegments;
}

// Two bf16 terms whose sum is each of four numbers to 16 bits.
struct Terms {
  uint32_t high[2];
  uint32_t low[2];
};

__device__ __forceinline__ uint32_t bits(__nv_bfloat162 pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}

__device__ __forceinline__ Terms split(float4 x) {
  const __nv_bfloat162 a = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 b = __floats2bfloat162_rn(x.z, x.w);
  const float2 fa = __bfloat1622float2(a);
  const float2 fb = __bfloat1622float2(b);
  return {{bits(a), bits(b)},
          {bits(__floats2bfloat162_rn(x.x - fa.x, x.y - fa.y)),
           bits(__floats2bfloat162_rn(x.z - fb.x, x.w - fb.y))}};
}

__device__ __forceinline__ void mma(float (&acc)[4], const uint4& a, const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}

template <bool kBF16>
__device__ __forceinline__ void multiply(float (&acc)[4], const uint4& a, const Terms& x) {
  mma(acc, a, x.high);
  if (!kBF16) mma(acc, a, x.low);
}

// Four inputs as they lie in memory, and the terms they become.
template <bool kBF16>
struct Loaded {
  float4 four;
};
template <>
struct Loaded<true> {
  uint2 four;
};

__device__ __forceinline__ Terms terms(const Loaded<true>& x) {
  return {{x.four.x, x.four.y}, {0, 0}};
}
__device__ __forceinline__ Terms terms(const Loaded<false>& x) {
  return split(x.four);
}

// Inputs k .. k + 3 of a row, zeros past n_in. kVector: rows are aligned to four elements.
template <bool kBF16, bool kVector>
__device__ __forceinline__ Loaded<kBF16> load_four(const void* row, int k, int n_in) {
  if constexpr (kBF16) {
    const auto* x = static_cast<const __nv_bfloat16*>(row) + k;
    if constexpr (kVector) {
      return {k < n_in ? *reinterpret_cast<const uint2*>(x) : make_uint2(0, 0)};
    } else {
      const auto at = [&](int i) { return k + i < n_in ? x[i] : __nv_bfloat16(0.0f); };
      return {make_uint2(bits({at(0), at(1)}), bits({at(2), at(3)}))};
    }
  } else {
    const auto* x = static_cast<const float*>(row) + k;
    if constexpr (kVector) {
      return {k < n_in ? *reinterpret_cast<const float4*>(x) : make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
    } else {
      const auto at = [&](int i) { return k + i < n_in ? x[i] : 0.0f; };
      return {make_float4(at(0), at(1), at(2), at(3))};
    }
  }
}

// What a block works on: rows of a list, and 16 or more outputs of a matrix.
struct Part {
  const uint4* weight;  // first tile of the matrix
  int tile;             // first of the tiles of results
  int64_t n_out;        // results: half of the matrix's outputs where it is gated
  int row_begin;
  int row_count;
  const int32_t* x_rows;
  int64_t x_offset;  // elements, for all rows
  const float* bias;
  void* out;
  int64_t out_stride;
  int64_t out_offset;
  // Read only by kernels where the parts' inputs differ.
  const void* x;
  int64_t x_stride;
  int64_t n_in;
};

// All of it at once, before anything asks what it is.
__device__ __forceinline__ ExpertTile load_tile(const ExpertTile* from) {
  static_assert(sizeof(ExpertTile) == 2 * sizeof(uint4));
  uint4 both[2] = {__ldcg(reinterpret_cast<const uint4*>(from)),
                   __ldcg(reinterpret_cast<const uint4*>(from) + 1)};
  return *reinterpret_cast<const ExpertTile*>(both);
}

// Of args.weight, .weights or .tiles: the rows and the group that the block's y and z say.
__device__ __forceinline__ bool find_part(const GemmArgs& args, int tile, int y, int z,
                                          int rows_per_block, Part& part) {
  part.tile = tile;
  part.n_out = args.gated ? args.n_out / 2 : args.n_out;
  part.x_rows = args.x_rows;
  part.x_offset = z * args.x_group;
  part.bias = args.bias;
  part.out = args.out;
  part.out_stride = args.out_stride;
  part.out_offset = z * args.out_group;
  part.x = args.x;
  part.x_stride = args.x_stride;
  part.n_in = args.n_in;
  if (args.tiles != nullptr) {
    const ExpertTile expert = load_tile(args.tiles + y);
    part.weight = static_cast<const uint4*>(args.tiles_down ? expert.down : expert.gate_up);
    part.row_begin = expert.begin;
    part.row_count = expert.count;
    return part.row_count > 0;
  }
  part.weight = static_cast<const uint4*>(args.weights != nullptr ? args.weights[z] : args.weight);
  part.row_begin = y * rows_per_block;
  part.row_count = min(rows_per_block, static_cast<int>(args.rows) - part.row_begin);
  return true;
}

// Of args.beside: the rows that y says.
__device__ __forceinline__ Part beside_part(const GemmArgs& args, int tile, int y,
                                            int rows_per_block) {
  const BesideArgs& beside = args.beside;
  Part part{};
  part.weight = static_cast<const uint4*>(beside.weight);
  part.tile = tile;
  part.n_out = args.gated && !beside.plain ? beside.n_out / 2 : beside.n_out;
  part.row_begin = y * rows_per_block;
  part.row_count = min(rows_per_block, static_cast<int>(beside.rows) - part.row_begin);
  part.bias = beside.bias;
  part.out = beside.out;
  part.out_stride = beside.out_stride;
  part.x = beside.x;
  part.x_stride = beside.x_stride;
  part.n_in = beside.n_in;
  return part;
}

template <bool kBF16>
__device__ __forceinline__ const void* row_pointer(const GemmArgs& args, const Part& part, int i) {
  const int listed = part.row_begin + i;
  const int64_t row = part.x_rows != nullptr ? part.x_rows[listed] : listed;
  return static_cast<const char*>(args.x) + (row * args.x_stride + part.x_offset) * (kBF16 ? 2 : 4);
}

// The same where the parts' inputs differ.
template <bool kBF16>
__device__ __forceinline__ const void* own_row_pointer(const Part& part, int i) {
  const int listed = part.row_begin + i;
  const int64_t row = part.x_rows != nullptr ? part.x_rows[listed] : listed;
  return static_cast<const char*>(part.x) + row * part.x_stride * (kBF16 ? 2 : 4);
}

// A result's place, and what is added there.
struct Target {
  const GemmArgs& args;
  const Part& part;
  __device__ __forceinline__ int64_t place(int row, int64_t output) const {
    return int64_t{part.row_begin + row} * part.out_stride + part.out_offset + output;
  }
  __device__ __forceinline__ float before(int64_t at) const {
    if (!args.accumulate) return 0.0f;
    return args.out_is_bf16 ? load_value(static_cast<const __nv_bfloat16*>(part.out), at)
                            : static_cast<const float*>(part.out)[at];
  }
  __device__ __forceinline__ void store(int64_t at, float value) const {
    if (args.out_is_bf16)
      store_value(static_cast<__nv_bfloat16*>(part.out), at, value);
    else
      static_cast<float*>(part.out)[at] = value;
  }
  // The only place where a result is finished, so that all kernels round alike. `bias`, `before`:
  // kNothing where nothing is added.
  static constexpr float kNothing = -0.0f;  // added to a number it changes none, not even zeros
  __device__ __forceinline__ float finished(float sum, float bias, float before) const {
    return __fadd_rn(before, __fmul_rn(args.scale, __fadd_rn(sum, bias)));
  }
  __device__ __forceinline__ void finish(int64_t at, int64_t output, float sum,
                                         float before) const {
    store(at, finished(sum, part.bias != nullptr ? part.bias[output] : kNothing,
                       args.accumulate ? before : kNothing));
  }
};

// Normed rows in shared memory: floats from one row to the next, such that lanes that read four
// inputs of eight rows meet no bank twice; and all of it, with the weights of the norm behind.
__host__ __device__ constexpr int64_t normed_stride(int64_t n_in) {
  return tile_count(n_in) * kTileInputs + kTileInputs;
}
constexpr int64_t normed_bytes(int64_t rows, int64_t n_in) {
  return (rows + 1) * normed_stride(n_in) * static_cast<int64_t>(sizeof(float));
}

// Before the rows are there: the norm's weights come to where the thread will want them.
__device__ __forceinline__ void fetch_norm_weights(const GemmArgs& args, int rows, float* shared) {
  float* weights = shared + rows * normed_stride(args.n_in);
  for (int i = threadIdx.x; i < args.n_in; i += kProductThreads) weights[i] = args.norm_weight[i];
}

// The part's rows, normed, in shared memory; bit for bit what rms_norm makes of them.
__device__ __forceinline__ void norm_rows(const GemmArgs& args, const Part& part, float* shared) {
  __shared__ float squares[kFewRows][kSegments];
  constexpr int kTogether = 8;
  const int n_in = static_cast<int>(args.n_in);
  const int64_t stride = normed_stride(n_in);
  const float* weights = shared + part.row_count * stride;
  for (int r = 0; r < part.row_count; ++r) {
    const auto* from = static_cast<const float*>(row_pointer<false>(args, part, r));
    float* to = shared + r * stride;
    float sum = 0.0f;
    for (int first = threadIdx.x; first < n_in; first += kTogether * kProductThreads) {
      float kept[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        kept[i] = first + i * kProductThreads < n_in ? from[first + i * kProductThreads] : 0.0f;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        sum = __fmaf_rn(kept[i], kept[i], sum);
        if (first + i * kProductThreads < n_in) to[first + i * kProductThreads] = kept[i];
      }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % kWarp == 0) squares[r][threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  for (int r = 0; r < part.row_count; ++r) {
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kSegments; ++warp) total += squares[r][warp];
    const float factor = norm_factor(total, n_in, args.norm_eps);
    float* row = shared + r * stride;
    for (int i = threadIdx.x; i < tile_count(n_in) * kTileInputs; i += kProductThreads)
      row[i] = i < n_in ? row[i] * factor * weights[i] : 0.0f;
  }
  __syncthreads();
}

// The tiles of outputs that a block multiplies by.
enum class Tiles : int {
  kOne,
  kTwo,    // neighbours: a block that reads more is slowed down less by its begin and end
  kGated,  // of gate, and the same of up
};

// 16 results, or 32 of kTwo, x 8 * kRowTiles rows: each warp sums one segment of the inputs. Waits
// for the kernel before this one once the first weights are on their way. `shared`, for kNormed:
// normed_bytes(). kApart: the parts' inputs differ.
template <int kRowTiles, bool kBF16, bool kVector, bool kNormed, Tiles kTiles, bool kApart = false>
__device__ __forceinline__ void stream_product(const GemmArgs& args, const Part& part,
                                               float* shared) {
  constexpr int kRows = 8 * kRowTiles;
  constexpr bool kGated = kTiles == Tiles::kGated;
  constexpr int kHalves = kTiles == Tiles::kOne ? 1 : 2;
  constexpr int kOutputs = kTiles == Tiles::kTwo ? 2 * kTileOutputs : kTileOutputs;
  constexpr int kAhead = 16 / kRowTiles / kHalves;        // weight tiles in flight, of each half
  constexpr int kTogether = kAhead > 1 ? kAhead / 2 : 1;  // tiles whose rows are loaded together
  constexpr int kResults = (kRows * kOutputs + kProductThreads - 1) / kProductThreads;
  __shared__ float partial[kHalves][kSegments][kRows][kTileOutputs];
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int g = lane / 4;
  const int q = lane % 4;
  const int n_in = static_cast<int>(kApart ? part.n_in : args.n_in);
  const int k_tiles = static_cast<int>(tile_count(n_in));
  const int k_end = segment_begin(warp + 1, k_tiles);
  const uint4* weight[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    int64_t tile = part.tile + h * (kGated ? part.n_out / kTileOutputs : 1);
    if (!kGated && tile * kTileOutputs >= part.n_out) tile = part.tile;  // a result thrown away
    weight[h] = part.weight + lane + tile * k_tiles * kWarp;
  }

  uint4 a[kHalves][kAhead];
  const auto load_weights = [&](int first, int begin) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        if (begin + first + i < k_end)
          a[h][first + i] = __ldcs(weight[h] + int64_t{begin + first + i} * kWarp);
  };
  const int k_begin = segment_begin(warp, k_tiles);
#pragma unroll
  for (int first = 0; first < kAhead; first += kTogether) load_weights(first, k_begin);
  if constexpr (kNormed) fetch_norm_weights(args, part.row_count, shared);
  wait_for_previous();  // weights are nobody's result

  const Target target{args, part};
  float before[kResults];
#pragma unroll
  for (int i = 0; i < kResults; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kProductThreads;
    const int64_t output = int64_t{part.tile} * kTileOutputs + index % kOutputs;
    const bool mine = index < part.row_count * kOutputs && output < part.n_out;
    before[i] = mine ? target.before(target.place(index / kOutputs, output)) : 0.0f;
  }
  if constexpr (kNormed) norm_rows(args, part, shared);
  const void* rows[kRowTiles];
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    const int row = min(8 * t + g, part.row_count - 1);
    rows[t] = kNormed  ? shared + row * normed_stride(n_in)
              : kApart ? own_row_pointer<kBF16>(part, row)
                       : row_pointer<kBF16>(args, part, row);
  }
  float acc[kHalves][kRowTiles][4] = {};
  for (int begin = k_begin; begin < k_end; begin += kAhead) {
#pragma unroll
    for (int first = 0; first < kAhead; first += kTogether) {
      if (begin + first >= k_end) break;
      Loaded<kBF16> x[kTogether][kRowTiles];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t)
          x[i][t] =
              load_four<kBF16, kVector>(rows[t], 16 * min(begin + first + i, k_end - 1) + 4 * q,
                                        kNormed ? k_tiles * kTileInputs : n_in);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (begin + first + i >= k_end) break;
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
          for (int h = 0; h < kHalves; ++h)
            multiply<kBF16>(acc[h][t], a[h][first + i], terms(x[i][t]));
      }
      load_weights(first, begin + kAhead);
    }
  }
#pragma unroll
  for (int h = 0; h < kHalves; ++h)
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      partial[h][warp][8 * t + 2 * q][g] = acc[h][t][0];
      partial[h][warp][8 * t + 2 * q + 1][g] = acc[h][t][1];
      partial[h][warp][8 * t + 2 * q][g + 8] = acc[h][t][2];
      partial[h][warp][8 * t + 2 * q + 1][g + 8] = acc[h][t][3];
    }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kResults; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kProductThreads;
    const int row = index / kOutputs;
    const int64_t output = int64_t{part.tile} * kTileOutputs + index % kOutputs;
    if (row >= part.row_count || output >= part.n_out) continue;
    const auto sum_of = [&](int h) {
      float sum = 0.0f;
#pragma unroll
      for (int segment = 0; segment < kSegments; ++segment)
        sum += partial[h][segment][row][index % kTileOutputs];
      return sum;
    };
    if constexpr (kGated)
      target.store(target.place(row, output), silu_times(sum_of(0), sum_of(1)));
    else
      target.finish(target.place(row, output), output, sum_of(index % kOutputs / kTileOutputs),
                    before[i]);
  }
}

}  // namespace foresail::cuda
