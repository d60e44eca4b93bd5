// Two kernels with one order of sums (gemm.h): `stream_kernel` for few rows, where weights are read
// at memory speed by eight warps that share the inputs of 16 outputs; `tile_kernel` for many rows,
// where 128 outputs x 64 rows are worked on together and the rows lie in shared memory.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"

namespace foresail::cuda {
namespace {

// Blocks that all results of a row take.
template <Tiles kTiles>
__host__ __device__ int64_t result_blocks(int64_t n_out) {
  const int64_t tiles = tile_count(kTiles == Tiles::kGated ? n_out / 2 : n_out);
  return kTiles == Tiles::kTwo ? (tiles + 1) / 2 : tiles;
}

// kRowTiles * 8 rows. Block x: for every eight rows those of args.beside; then for every list of
// rows, or expert tile, those of the other matrices; z: group.
template <int kRowTiles, bool kBF16, bool kVector, bool kNormed, Tiles kTiles, bool kApart>
__global__ void __launch_bounds__(kProductThreads, 2)
    stream_kernel(const __grid_constant__ GemmArgs args) {
  extern __shared__ float4 normed[];
  let_next_start();
  constexpr int kRows = 8 * kRowTiles;
  constexpr int kWidth = kTiles == Tiles::kTwo ? 2 : 1;
  int block = static_cast<int>(blockIdx.x);
  int beside_blocks = 0;
  Part part;
  if (args.beside.weight != nullptr) {
    const auto blocks = static_cast<int>(result_blocks<kTiles>(args.beside.n_out));
    beside_blocks = blocks * ((static_cast<int>(args.beside.rows) + kRows - 1) / kRows);
    if (block < beside_blocks)
      part = beside_part(args, block % blocks * kWidth, block / blocks, kRows);
  }
  if (block >= beside_blocks) {
    if (args.tiles != nullptr) wait_for_previous();  // which weights is a result
    block -= beside_blocks;
    const auto blocks = static_cast<int>(result_blocks<kTiles>(args.n_out));
    if (!find_part(args, block % blocks * kWidth, block / blocks, static_cast<int>(blockIdx.z),
                   kRows, part))
      return;
  }
  stream_product<kRowTiles, kBF16, kVector, kNormed, kTiles, kApart>(
      args, part, reinterpret_cast<float*>(normed));
}

constexpr int kBlockOutputs = 128;  // four warps of two tiles
constexpr int kBlockRows = 64;      // two warps of four groups of eight rows
constexpr int kChunkTiles = 4;      // inputs in shared memory: 64

// Block x: 128 outputs, or 64 results where they are gated; y: 64 rows or expert tile; z: group.
template <bool kBF16, bool kVector, bool kGated>
__global__ void __launch_bounds__(kProductThreads)
    tile_kernel(const __grid_constant__ GemmArgs args) {
  // [tile of inputs][row][quad]: the four inputs of a lane, 8 bytes.
  __shared__ uint2 high[kChunkTiles][kBlockRows][4];
  __shared__ uint2 low[kBF16 ? 1 : kChunkTiles][kBF16 ? 1 : kBlockRows][4];
  constexpr int kWarpTiles = kGated ? 1 : 2;  // of results: the second tile of a warp is up's
  Part part;
  if (!find_part(args, static_cast<int>(blockIdx.x) * 4 * kWarpTiles, static_cast<int>(blockIdx.y),
                 static_cast<int>(blockIdx.z), kBlockRows, part))
    return;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int g = lane / 4;
  const int q = lane % 4;
  const int n_in = static_cast<int>(args.n_in);
  const int k_tiles = static_cast<int>(tile_count(args.n_in));
  const int out_tiles = static_cast<int>(tile_count(part.n_out));
  const int first_tile = part.tile + warp % 4 * kWarpTiles;
  const int first_row = warp / 4 * (kBlockRows / 2);
  // Past the last output the first tile is read again and its result thrown away.
  const uint4* weight[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int tile = kGated ? first_tile : first_tile + m;
    const int64_t half = kGated ? m * out_tiles : 0;
    weight[m] =
        part.weight + lane + (half + (tile < out_tiles ? tile : 0)) * int64_t{k_tiles} * kWarp;
  }
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
  const Target target{args, part};
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t output = (first_tile + m) * kTileOutputs + g + (i >= 2 ? 8 : 0);
        const int row = first_row + 8 * n + 2 * q + i % 2;
        if (output >= part.n_out || row >= part.row_count) continue;
        const int64_t at = target.place(row, output);
        const float sum = total[m][n][i] + acc[m][n][i];
        if constexpr (kGated)
          target.store(at, silu_times(sum, total[1][n][i] + acc[1][n][i]));
        else
          target.finish(at, output, sum, target.before(at));
      }
}

constexpr int kPackThreads = kTileBytes / 2;  // one a number of a tile

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
  pack_kernel<<<grid, kPackThreads, 0, stream>>>(static_cast<const T*>(args.source), args.stride,
                                                 args.transposed, args.n_out, args.n_in,
                                                 static_cast<__nv_bfloat16*>(packed));
}

template <int kRowTiles, bool kBF16, bool kVector, bool kNormed = false, Tiles kTiles = Tiles::kOne,
          bool kApart = false>
void launch_stream(cudaStream_t stream, const GemmArgs& args) {
  constexpr int kRows = 8 * kRowTiles;
  const auto parts = [](int64_t rows) { return (rows + kRows - 1) / kRows; };
  int64_t blocks = result_blocks<kTiles>(args.n_out) *
                   (args.tiles != nullptr ? args.tile_limit : parts(args.rows));
  if (args.beside.weight != nullptr)
    blocks += result_blocks<kTiles>(args.beside.n_out) * parts(args.beside.rows);
  const dim3 grid(static_cast<unsigned>(blocks), 1, static_cast<unsigned>(args.groups));
  const int64_t bytes = kNormed ? normed_bytes(std::min<int64_t>(args.rows, kRows), args.n_in) : 0;
  launch_early(stream, grid, kProductThreads, static_cast<size_t>(bytes),
               stream_kernel<kRowTiles, kBF16, kVector, kNormed, kTiles, kApart>, args);
}

template <bool kBF16, bool kVector, bool kGated>
void launch_tiles(cudaStream_t stream, const GemmArgs& args) {
  const int64_t parts =
      args.tiles != nullptr ? args.tile_limit : (args.rows + kBlockRows - 1) / kBlockRows;
  const dim3 grid(static_cast<unsigned>((args.n_out + kBlockOutputs - 1) / kBlockOutputs),
                  static_cast<unsigned>(parts), static_cast<unsigned>(args.groups));
  tile_kernel<kBF16, kVector, kGated><<<grid, kProductThreads, 0, stream>>>(args);
}

// Whether there are so many blocks that each had better do more.
bool is_long(const GemmArgs& args) {
  constexpr int64_t kManyBlocks = 2048;
  const int64_t parts = args.tiles != nullptr ? args.tile_limit : args.groups;
  return tile_count(args.n_out) * parts >= kManyBlocks;
}

int64_t rows_at_once(const GemmArgs& args) {
  return args.tiles != nullptr ? args.tile_rows : args.rows;
}

// Groups of eight rows that a block takes. With fewer it has more weights on their way, and what
// other blocks of the same weights read comes from L2: better for a matrix with few outputs, and
// worse where there are blocks enough.
int row_tiles(const GemmArgs& args) {
  constexpr int64_t kFewBlocks = 128;
  const int64_t rows = rows_at_once(args);
  if (rows <= 8) return 1;
  if (rows <= 16) return 2;
  const int64_t blocks = tile_count(args.n_out) + tile_count(args.beside.n_out);
  return args.tiles == nullptr && args.groups == 1 && blocks <= kFewBlocks ? 1 : 4;
}

// Of f32 rows, and those of `beside` are others.
void launch_apart(cudaStream_t stream, const GemmArgs& args) {
  constexpr Tiles kOne = Tiles::kOne;
  const int tiles = row_tiles(args);
  if (tiles == 1 && is_long(args))
    return launch_stream<1, false, true, false, Tiles::kTwo, true>(stream, args);
  if (tiles == 1) return launch_stream<1, false, true, false, kOne, true>(stream, args);
  if (tiles == 2) return launch_stream<2, false, true, false, kOne, true>(stream, args);
  launch_stream<4, false, true, false, kOne, true>(stream, args);
}

template <bool kBF16, bool kVector>
void launch(cudaStream_t stream, const GemmArgs& args) {
  const int64_t rows = rows_at_once(args);
  // Rows that are no multiple of four elements are rare and small: one instance serves them.
  if (!kVector && rows <= 16) return launch_stream<2, kBF16, kVector>(stream, args);
  if (kVector && rows <= 32) {
    const int tiles = row_tiles(args);
    if (tiles == 1 && is_long(args))
      return launch_stream<1, kBF16, kVector, false, Tiles::kTwo>(stream, args);
    if (tiles == 1) return launch_stream<1, kBF16, kVector>(stream, args);
    if (tiles == 2) return launch_stream<2, kBF16, kVector>(stream, args);
    return launch_stream<4, kBF16, kVector>(stream, args);
  }
  launch_tiles<kBF16, kVector, false>(stream, args);
}

void launch_gated(cudaStream_t stream, const GemmArgs& args) {
  constexpr Tiles kTiles = Tiles::kGated;
  if (args.norm_weight != nullptr) return launch_stream<1, false, true, true, kTiles>(stream, args);
  const int64_t rows = rows_at_once(args);
  if (rows <= 8) return launch_stream<1, false, true, false, kTiles>(stream, args);
  if (rows <= 16) return launch_stream<2, false, true, false, kTiles>(stream, args);
  if (rows <= 32) return launch_stream<4, false, true, false, kTiles>(stream, args);
  launch_tiles<false, true, true>(stream, args);
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

bool has_vector_rows(const GemmArgs& args) {
  const uintptr_t row_alignment = args.x_is_bf16 ? 8 : 16;
  return args.n_in % 4 == 0 && args.x_stride % 4 == 0 && args.x_group % 4 == 0 &&
         reinterpret_cast<uintptr_t>(args.x) % row_alignment == 0 && args.beside.n_in % 4 == 0 &&
         args.beside.x_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(args.beside.x) % row_alignment == 0;
}

bool norms_rows(const GemmArgs& args) {
  // Every block norms its rows again: with more and longer ones a launch of its own is less.
  constexpr int64_t kFewNormedRows = 2;
  constexpr int64_t kMostNormedRows = 32;
  constexpr int64_t kShortRow = 1536;
  constexpr int64_t kMostNormedBytes = 80 << 10;  // a block of any device has 99
  return args.rows <= (args.n_in <= kShortRow ? kMostNormedRows : kFewNormedRows) &&
         !args.x_is_bf16 && has_vector_rows(args) && args.tiles == nullptr && args.groups == 1 &&
         normed_bytes(std::min<int64_t>(args.rows, kFewRows), args.n_in) <= kMostNormedBytes;
}

bool gates_rows(const GemmArgs& args) {
  return !args.x_is_bf16 && has_vector_rows(args) && args.groups == 1 &&
         args.n_out % (2 * kTileOutputs) == 0;
}

GemmArgs beside_product(const GemmArgs& args) {
  GemmArgs second = args;
  second.beside = {};
  second.weight = args.beside.weight;
  second.tiles = nullptr;
  second.n_out = args.beside.n_out;
  second.rows = args.beside.rows;
  second.x_rows = nullptr;
  if (args.beside.x != nullptr) {
    second.x = args.beside.x;
    second.x_stride = args.beside.x_stride;
    second.n_in = args.beside.n_in;
  }
  second.gated = args.gated && !args.beside.plain;
  if (!second.gated) second.split_out = {};
  second.bias = args.beside.bias;
  second.out = args.beside.out;
  second.out_stride = args.beside.out_stride;
  return second;
}

void gemm(cudaStream_t stream, const GemmArgs& args) {
  if (args.rows == 0 || args.n_out == 0) return;
  constexpr int64_t kMostBesideRows = 32;
  if (args.beside.weight != nullptr &&
      (!has_vector_rows(args) || (args.beside.x != nullptr && args.x_is_bf16) ||
       std::max(args.beside.rows, rows_at_once(args)) > kMostBesideRows)) {
    GemmArgs first = args;
    first.beside = {};
    gemm(stream, first);
    return gemm(stream, beside_product(args));
  }
  if (args.beside.x != nullptr) return launch_apart(stream, args);
  if (args.gated) return launch_gated(stream, args);
  if (args.norm_weight != nullptr) return launch_stream<1, false, true, true>(stream, args);
  if (args.x_is_bf16)
    return has_vector_rows(args) ? launch<true, true>(stream, args)
                                 : launch<true, false>(stream, args);
  has_vector_rows(args) ? launch<false, true>(stream, args) : launch<false, false>(stream, args);
}

}  // namespace foresail::cuda
