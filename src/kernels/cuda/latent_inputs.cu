#include "kernels/cuda/latent_inputs.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/rotate_row.cuh"
#include "kernels/cuda/sm90/split_rows.cuh"

namespace foresail::cuda {
namespace {

constexpr int kWarps = kProductThreads / kWarp;
// Beyond it the weights would be read too often: a block takes kFewRows.
constexpr int64_t kMostRows = 32;
constexpr int kMostHeadTiles = kSegments;  // of the inputs of a head

// 16 latent numbers of one head for up to eight rows, by a warp. The sums go as in gemm().
template <typename Out>
__device__ __forceinline__ void absorb(const LatentInputsArgs& args, int first_row, int row_count,
                                       int head, int tile) {
  const int lane = threadIdx.x % kWarp;
  const int g = lane / 4;
  const int q = lane % 4;
  const int k_tiles = static_cast<int>(tile_count(args.nope_dim));
  const bool is_mine = tile < tile_count(args.cache.latent_dim);
  uint4 a[kMostHeadTiles];
  if (is_mine) {
    const auto* weight = static_cast<const uint4*>(args.weights[head]) +
                         static_cast<int64_t>(tile) * k_tiles * kWarp + lane;
#pragma unroll
    for (int k = 0; k < kMostHeadTiles; ++k)
      if (k < k_tiles) a[k] = __ldg(weight + k * kWarp);
  }
  wait_for_previous();  // weights are nobody's result
  if (!is_mine) return;
  const int64_t row = first_row + min(g, row_count - 1);
  const float* from =
      args.q + row * args.q_stride + int64_t{head} * (args.nope_dim + args.rope.dim);
  const float scale = args.row_scale != nullptr ? args.row_scale[row] : 1.0f;
  Loaded<false> x[kMostHeadTiles];
#pragma unroll
  for (int k = 0; k < kMostHeadTiles; ++k)
    if (k < k_tiles) x[k] = load_four<false, true>(from, 16 * k + 4 * q, args.nope_dim);
  float sum[4] = {};
#pragma unroll
  for (int k = 0; k < kMostHeadTiles; ++k) {
    if (k >= k_tiles) break;
    float4& four = x[k].four;
    if (args.row_scale != nullptr)
      four = make_float4(four.x * scale, four.y * scale, four.z * scale, four.w * scale);
    float acc[4] = {};  // so few tiles are a segment each
    multiply<false>(acc, a[k], split(four));
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += acc[i];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int result_row = 2 * q + i % 2;
    const int output = tile * kTileOutputs + g + (i >= 2 ? 8 : 0);
    if (result_row >= row_count || output >= args.cache.latent_dim) continue;
    store_value(static_cast<Out*>(args.out) + (first_row + result_row) * args.out_stride +
                    int64_t{head} * (args.cache.latent_dim + args.rope.dim),
                output, sum[i]);
  }
}

// Block x: eight tiles of 16 latent numbers, y: head; with y = heads, rows; z: eight rows.
template <typename Out, typename T>
__global__ void __launch_bounds__(kProductThreads)
    latent_inputs_kernel(const __grid_constant__ LatentInputsArgs args, float inverse_scale) {
  __shared__ float scratch[kSumWarps];
  let_next_start();
  const int first_row = static_cast<int>(blockIdx.z) * kFewRows;
  const int row_count = min(kFewRows, static_cast<int>(args.rows) - first_row);
  const auto head = static_cast<int>(blockIdx.y);
  if (head < args.heads)
    return absorb<Out>(args, first_row, row_count, head,
                       static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarp));
  wait_for_previous();
  for (int i = static_cast<int>(blockIdx.x); i < row_count; i += static_cast<int>(gridDim.x))
    rotate_row<kProductThreads, Out, T>(args, first_row + i, inverse_scale, scratch);
}

// The part of a row's queries that is no rotated one, split for the product that absorbs it: by
// head, a thread 16 numbers.
__device__ __forceinline__ void split_queries(const LatentInputsArgs& args, int place, int row) {
  const SplitOut& split = args.split_out;
  const int row_tiles = (static_cast<int>(args.rows) + split.tile_rows - 1) / split.tile_rows;
  const int tiles = split.chunks * kChunkTiles;
  for (int i = threadIdx.x; i < args.heads * tiles; i += kProductThreads) {
    const int head = i / tiles;
    const int tile = i % tiles;
    const float* from =
        args.q + row * args.q_stride + int64_t{head} * (args.nope_dim + args.rope.dim);
    Terms x[4];
#pragma unroll
    for (int q = 0; q < 4; ++q)
      x[q] = terms(load_four<false, true>(from, tile * kTileInputs + 4 * q, args.nope_dim));
    uint4* chunk = chunk_of<false>(
        static_cast<uint4*>(split.to), int64_t{head} * row_tiles + place / split.tile_rows,
        split.chunks, tile / kChunkTiles, place % split.tile_rows / kGroupRows, split.tile_rows);
    store_terms<false>(x, chunk, term_bytes(split.tile_rows), place % kGroupRows,
                       tile % kChunkTiles);
  }
}

// Block x: row, with those that fill up the last eight where rows are split.
template <typename Out, typename T>
__global__ void __launch_bounds__(kProductThreads)
    rotate_rows_kernel(const __grid_constant__ LatentInputsArgs args, float inverse_scale) {
  __shared__ float scratch[kSumWarps];
  let_next_start();
  wait_for_previous();
  const int place = static_cast<int>(blockIdx.x);
  const int row = min(place, static_cast<int>(args.rows) - 1);
  if (args.split_out.to != nullptr) split_queries(args, place, row);
  if (place == row) rotate_row<kProductThreads, Out, T>(args, row, inverse_scale, scratch);
}

// Calls body with null pointers of the types of the queries and of the cache's numbers, and the
// factor of what is stored there.
template <typename Body>
void with_types(const LatentInputsArgs& args, const Body& body) {
  const float inverse = inverse_scale(args.cache);
  const auto with = [&](auto* out) {
    if (args.cache.element == Element::kF8E4M3)
      body(out, static_cast<__nv_fp8_e4m3*>(nullptr), inverse);
    else if (args.cache.element == Element::kBF16)
      body(out, static_cast<__nv_bfloat16*>(nullptr), inverse);
    else
      body(out, static_cast<float*>(nullptr), inverse);
  };
  if (args.out_is_bf16)
    with(static_cast<__nv_bfloat16*>(nullptr));
  else
    with(static_cast<float*>(nullptr));
}

}  // namespace

bool fits_latent_inputs(const LatentInputsArgs& args) {
  return args.rows <= kMostRows && tile_count(args.nope_dim) <= kMostHeadTiles &&
         args.nope_dim % 4 == 0 && args.rope.dim % 4 == 0 && args.q_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(args.q) % 16 == 0;
}

void latent_inputs(cudaStream_t stream, const LatentInputsArgs& args) {
  if (args.rows == 0) return;
  const int64_t tiles = tile_count(args.cache.latent_dim);
  const dim3 grid(static_cast<unsigned>((tiles + kWarps - 1) / kWarps),
                  static_cast<unsigned>(args.heads + 1),
                  static_cast<unsigned>((args.rows + kFewRows - 1) / kFewRows));
  with_types(args, [&]<typename Out, typename T>(Out*, T*, float inverse) {
    launch_early(stream, grid, kProductThreads, 0, latent_inputs_kernel<Out, T>, args, inverse);
  });
}

void rotate_rows(cudaStream_t stream, const LatentInputsArgs& args) {
  if (args.rows == 0) return;
  const int64_t blocks = args.split_out.to == nullptr
                             ? args.rows
                             : (args.rows + kGroupRows - 1) / kGroupRows * kGroupRows;
  with_types(args, [&]<typename Out, typename T>(Out*, T*, float inverse) {
    launch_early(stream, dim3(static_cast<unsigned>(blocks)), kProductThreads, 0,
                 rotate_rows_kernel<Out, T>, args, inverse);
  });
}

}  // namespace foresail::cuda
