// Two kernels with one order of sums (gemm.h): `stream_kernel` for few rows, where weights are read
// at memory speed by eight warps that share the inputs of 16 outputs; `tile_kernel` for many rows,
// where 128 outputs x 64 rows are worked on together and the rows lie in shared memory.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm.h"

namespace foresail::cuda {
namespace {

constexpr int kSegments = 8;
constexpr int kThreads = 256;

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

struct Epilogue {
  const float* bias;
  float scale;
  bool accumulate;
  bool is_bf16;
};

// The only place where a result is finished, so that both kernels round alike.
__device__ __forceinline__ void finish(const Epilogue& epilogue, void* out, int64_t at, int output,
                                       float sum) {
  if (epilogue.bias != nullptr) sum = __fadd_rn(sum, epilogue.bias[output]);
  float value = __fmul_rn(epilogue.scale, sum);
  if (epilogue.is_bf16) {
    auto* to = static_cast<__nv_bfloat16*>(out) + at;
    if (epilogue.accumulate) value = __fadd_rn(__bfloat162float(*to), value);
    *to = __float2bfloat16_rn(value);
  } else {
    auto* to = static_cast<float*>(out) + at;
    if (epilogue.accumulate) value = __fadd_rn(*to, value);
    *to = value;
  }
}

// What a block works on: a matrix, and rows of the list.
struct Part {
  const uint4* weight;
  int group;
  int row_begin;
  int row_count;
};

__device__ __forceinline__ bool find_part(const GemmArgs& args, int rows_per_block, Part& part) {
  if (args.tiles != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *args.tile_count) return false;
    const ExpertTile tile = args.tiles[blockIdx.y];
    part = {static_cast<const uint4*>(args.weights[tile.expert]), 0, tile.begin, tile.count};
    return true;
  }
  part.group = static_cast<int>(blockIdx.z);
  part.weight =
      static_cast<const uint4*>(args.weights != nullptr ? args.weights[blockIdx.z] : args.weight);
  part.row_begin = static_cast<int>(blockIdx.y) * rows_per_block;
  part.row_count = min(rows_per_block, static_cast<int>(args.rows) - part.row_begin);
  return true;
}

template <bool kBF16>
__device__ __forceinline__ const void* row_pointer(const GemmArgs& args, const Part& part, int i) {
  const int listed = part.row_begin + i;
  const int64_t row = args.x_rows != nullptr ? args.x_rows[listed] : listed;
  return static_cast<const char*>(args.x) +
         (row * args.x_stride + part.group * args.x_group) * (kBF16 ? 2 : 4);
}

// kRowTiles * 8 rows. Block x: 16 outputs; y: rows or expert tile; z: group.
template <int kRowTiles, bool kBF16, bool kVector>
__global__ void __launch_bounds__(kThreads, 2) stream_kernel(GemmArgs args) {
  constexpr int kRows = 8 * kRowTiles;
  constexpr int kAhead = 16 / kRowTiles;     // weight tiles in flight
  constexpr int kRowsAhead = 8 / kRowTiles;  // and of the rows, which are mostly in the caches
  __shared__ float partial[kSegments][kRows][kTileOutputs];
  let_next_start();
  if (args.tiles != nullptr) wait_for_previous();  // which weights is a result
  Part part;
  if (!find_part(args, kRows, part)) return;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int g = lane / 4;
  const int q = lane % 4;
  const int n_in = static_cast<int>(args.n_in);
  const int k_tiles = static_cast<int>(tile_count(args.n_in));
  const int k_end = segment_begin(warp + 1, k_tiles);
  const uint4* weight = part.weight + static_cast<int64_t>(blockIdx.x) * k_tiles * kWarp + lane;

  const void* rows[kRowTiles];
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t)
    rows[t] = row_pointer<kBF16>(args, part, min(8 * t + g, part.row_count - 1));
  float acc[kRowTiles][4] = {};
  uint4 a[kAhead];
  // All loads of a round are in flight together; past the end the last tile is read again.
  const auto load_weights = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      a[i] = __ldcs(weight + static_cast<int64_t>(min(begin + i, k_end - 1)) * kWarp);
  };
  const int k_begin = segment_begin(warp, k_tiles);
  if (k_begin < k_end) load_weights(k_begin);
  wait_for_previous();  // weights are nobody's result
  for (int begin = k_begin; begin < k_end; begin += kAhead) {
    if (begin > k_begin) load_weights(begin);
#pragma unroll
    for (int first = 0; first < kAhead; first += kRowsAhead) {
      Loaded<kBF16> x[kRowsAhead][kRowTiles];
#pragma unroll
      for (int i = 0; i < kRowsAhead; ++i)
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t)
          x[i][t] = load_four<kBF16, kVector>(rows[t],
                                              16 * min(begin + first + i, k_end - 1) + 4 * q, n_in);
#pragma unroll
      for (int i = 0; i < kRowsAhead; ++i) {
        if (begin + first + i >= k_end) break;
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply<kBF16>(acc[t], a[first + i], terms(x[i][t]));
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    partial[warp][8 * t + 2 * q][g] = acc[t][0];
    partial[warp][8 * t + 2 * q + 1][g] = acc[t][1];
    partial[warp][8 * t + 2 * q][g + 8] = acc[t][2];
    partial[warp][8 * t + 2 * q + 1][g + 8] = acc[t][3];
  }
  __syncthreads();
  const Epilogue epilogue = {args.bias, args.scale, args.accumulate, args.out_is_bf16};
  for (int i = threadIdx.x; i < part.row_count * kTileOutputs; i += kThreads) {
    const int row = i / kTileOutputs;
    const int output = static_cast<int>(blockIdx.x) * kTileOutputs + i % kTileOutputs;
    if (output >= args.n_out) continue;
    float sum = 0.0f;
#pragma unroll
    for (int segment = 0; segment < kSegments; ++segment)
      sum += partial[segment][row][i % kTileOutputs];
    finish(epilogue, args.out,
           int64_t{part.row_begin + row} * args.out_stride + part.group * args.out_group + output,
           output, sum);
  }
}

constexpr int kBlockOutputs = 128;  // four warps of two tiles
constexpr int kBlockRows = 64;      // two warps of four groups of eight rows
constexpr int kChunkTiles = 4;      // inputs in shared memory: 64

// Block x: 128 outputs; y: 64 rows or expert tile; z: group.
template <bool kBF16, bool kVector>
__global__ void __launch_bounds__(kThreads) tile_kernel(GemmArgs args) {
  // [tile of inputs][row][quad]: the four inputs of a lane, 8 bytes.
  __shared__ uint2 high[kChunkTiles][kBlockRows][4];
  __shared__ uint2 low[kBF16 ? 1 : kChunkTiles][kBF16 ? 1 : kBlockRows][4];
  Part part;
  if (!find_part(args, kBlockRows, part)) return;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int g = lane / 4;
  const int q = lane % 4;
  const int n_in = static_cast<int>(args.n_in);
  const int k_tiles = static_cast<int>(tile_count(args.n_in));
  const int out_tiles = static_cast<int>(tile_count(args.n_out));
  const int first_tile = static_cast<int>(blockIdx.x) * (kBlockOutputs / 16) + warp % 4 * 2;
  const int first_row = warp / 4 * (kBlockRows / 2);
  // Past the last output the first tile is read again and its result thrown away.
  const uint4* weight[2];
#pragma unroll
  for (int m = 0; m < 2; ++m)
    weight[m] =
        part.weight + lane +
        static_cast<int64_t>(first_tile + m < out_tiles ? first_tile + m : 0) * k_tiles * kWarp;
  // Each thread loads the inputs of one row: 4 inputs of every tile of the chunk.
  const int load_row = threadIdx.x / 4;
  const void* source = row_pointer<kBF16>(args, part, min(load_row, part.row_count - 1));

  float acc[2][4][4] = {};
  float total[2][4][4] = {};
  int segment = 0;
  int segment_end = segment_begin(1, k_tiles);
  for (int chunk = 0; chunk < k_tiles; chunk += kChunkTiles) {
    const int tiles = min(kChunkTiles, k_tiles - chunk);
    Loaded<kBF16> loaded[kChunkTiles];
#pragma unroll
    for (int k = 0; k < kChunkTiles; ++k)
      loaded[k] = load_four<kBF16, kVector>(source, 16 * (chunk + k) + 4 * q, n_in);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kChunkTiles; ++k) {
      const Terms x = terms(loaded[k]);
      high[k][load_row][q] = make_uint2(x.high[0], x.high[1]);
      if (!kBF16) low[k][load_row][q] = make_uint2(x.low[0], x.low[1]);
    }
    __syncthreads();
    for (int k = 0; k < tiles; ++k) {
      while (chunk + k == segment_end) {
        for (int m = 0; m < 2; ++m)
          for (int n = 0; n < 4; ++n)
            for (int i = 0; i < 4; ++i) {
              total[m][n][i] += acc[m][n][i];
              acc[m][n][i] = 0.0f;
            }
        ++segment;
        segment_end = segment_begin(segment + 1, k_tiles);
      }
      const int64_t at = static_cast<int64_t>(chunk + k) * kWarp;
      const uint4 a[2] = {weight[0][at], weight[1][at]};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint2 h = high[k][first_row + 8 * n + g][q];
        Terms x = {{h.x, h.y}, {0, 0}};
        if (!kBF16) {
          const uint2 l = low[k][first_row + 8 * n + g][q];
          x.low[0] = l.x;
          x.low[1] = l.y;
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) multiply<kBF16>(acc[m][n], a[m], x);
      }
    }
  }
  const Epilogue epilogue = {args.bias, args.scale, args.accumulate, args.out_is_bf16};
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = (first_tile + m) * kTileOutputs + g + (i >= 2 ? 8 : 0);
        const int row = first_row + 8 * n + 2 * q + i % 2;
        if (output >= args.n_out || row >= part.row_count) continue;
        finish(
            epilogue, args.out,
            int64_t{part.row_begin + row} * args.out_stride + part.group * args.out_group + output,
            output, total[m][n][i] + acc[m][n][i]);
      }
}

template <typename T>
__global__ void pack_kernel(const T* source, int64_t stride, bool transposed, int64_t n_out,
                            int64_t n_in, __nv_bfloat16* packed) {
  const int64_t k_tiles = tile_count(n_in);
  const int64_t tile = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (tile >= tile_count(n_out) * k_tiles) return;
  const int lane = threadIdx.x / 8;
  const int element = threadIdx.x % 8;
  const int g = lane / 4;
  const int q = lane % 4;
  const int64_t output = tile / k_tiles * kTileOutputs + g + (element / 2 % 2) * 8;
  const int64_t input = tile % k_tiles * kTileInputs + 4 * q + element / 4 * 2 + element % 2;
  float value = 0.0f;
  if (output < n_out && input < n_in)
    value = load_value(source, transposed ? input * stride + output : output * stride + input);
  packed[tile * (kTileBytes / 2) + threadIdx.x] = __float2bfloat16_rn(value);
}

template <typename T>
void launch_pack(cudaStream_t stream, const PackArgs& args, void* packed) {
  const int64_t tiles = tile_count(args.n_out) * tile_count(args.n_in);
  const int64_t width = std::min<int64_t>(tiles, 65535);
  const dim3 grid(static_cast<unsigned>(width), static_cast<unsigned>((tiles + width - 1) / width));
  pack_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const T*>(args.source), args.stride,
                                             args.transposed, args.n_out, args.n_in,
                                             static_cast<__nv_bfloat16*>(packed));
}

// Whether the device knows programmatic dependent launch.
bool starts_early() {
  static const bool known = [] {
    int device = 0;
    int major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  return known;
}

template <int kRowTiles, bool kBF16, bool kVector>
void launch_stream(cudaStream_t stream, const GemmArgs& args) {
  constexpr int kRows = 8 * kRowTiles;
  const int64_t parts = args.tiles != nullptr ? args.tile_limit : (args.rows + kRows - 1) / kRows;
  const dim3 grid(static_cast<unsigned>(tile_count(args.n_out)), static_cast<unsigned>(parts),
                  static_cast<unsigned>(args.groups));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = starts_early() ? 1 : 0;
  cudaLaunchKernelEx(&config, stream_kernel<kRowTiles, kBF16, kVector>, args);
}

template <bool kBF16, bool kVector>
void launch(cudaStream_t stream, const GemmArgs& args) {
  const int64_t rows = args.tiles != nullptr ? args.tile_rows : args.rows;
  // Rows that are no multiple of four elements are rare and small: one instance serves them.
  if (rows <= 8 && kVector) return launch_stream<1, kBF16, kVector>(stream, args);
  if (rows <= 16) return launch_stream<2, kBF16, kVector>(stream, args);
  if (rows <= 32 && kVector) return launch_stream<4, kBF16, kVector>(stream, args);
  const int64_t parts =
      args.tiles != nullptr ? args.tile_limit : (args.rows + kBlockRows - 1) / kBlockRows;
  const dim3 grid(static_cast<unsigned>((args.n_out + kBlockOutputs - 1) / kBlockOutputs),
                  static_cast<unsigned>(parts), static_cast<unsigned>(args.groups));
  tile_kernel<kBF16, kVector><<<grid, kThreads, 0, stream>>>(args);
}

}  // namespace

void pack_tiles(cudaStream_t stream, const PackArgs& args, void* packed) {
  if (args.element == Element::kF32) return launch_pack<float>(stream, args, packed);
  if (args.element == Element::kF16) return launch_pack<__half>(stream, args, packed);
  launch_pack<__nv_bfloat16>(stream, args, packed);
}

int expert_tile_rows(int64_t pairs, int64_t experts) {
  const int64_t mean = pairs / std::max<int64_t>(experts, 1);
  for (const int rows : {8, 16, 32})
    if (2 * mean <= rows) return rows;
  return kBlockRows;
}

void gemm(cudaStream_t stream, const GemmArgs& args) {
  if (args.rows == 0 || args.n_out == 0) return;
  const uintptr_t row_alignment = args.x_is_bf16 ? 8 : 16;
  const bool vector = args.n_in % 4 == 0 && args.x_stride % 4 == 0 && args.x_group % 4 == 0 &&
                      reinterpret_cast<uintptr_t>(args.x) % row_alignment == 0;
  if (args.x_is_bf16)
    return vector ? launch<true, true>(stream, args) : launch<true, false>(stream, args);
  vector ? launch<false, true>(stream, args) : launch<false, false>(stream, args);
}

}  // namespace foresail::cuda
