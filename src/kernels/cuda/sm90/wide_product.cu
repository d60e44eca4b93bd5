// `split_kernel` writes the rows as bf16 terms, as they will lie in shared memory (wide_layout.h).
// They are multiplied by large_product.h in tiles of 128, by ring_product.h in smaller ones.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/sm90/large_product.h"
#include "kernels/cuda/sm90/ring_product.h"
#include "kernels/cuda/sm90/split_rows.cuh"
#include "kernels/cuda/sm90/wide_layout.h"
#include "kernels/cuda/sm90/wide_product.h"

namespace foresail::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kProcessors = 132;

// Groups that share their rows share what is split.
int64_t split_groups(const GemmArgs& args) {
  return args.x_group == 0 ? 1 : args.groups;
}
// Rows of a block. A large block reads least, if there are enough of them.
int block_rows(const GemmArgs& args) {
  if (args.tiles != nullptr) return args.tile_rows;
  if (args.rows <= kRingRows) return kRingRows;
  const int64_t results = args.gated ? args.n_out / 2 : args.n_out;
  const int64_t large_blocks = (results + 127) / 128 * row_tiles(args, kWideRows) * args.groups;
  return 2 * large_blocks < kProcessors ? kRingRows : kWideRows;
}

// A warp: 8 rows x kSplitTogether chunks of inputs. Block x: those of eight warps; y: eight rows;
// z: group.
template <bool kBF16>
__global__ void __launch_bounds__(kThreads)
    split_kernel(const __grid_constant__ GemmArgs args, int tile_rows, int chunks, uint4* scratch) {
  let_next_start();
  wait_for_previous();
  const int groups_of_tile = tile_rows / kGroupRows;
  const int tile = static_cast<int>(blockIdx.y) / groups_of_tile;
  const int group = static_cast<int>(blockIdx.y) % groups_of_tile;
  constexpr int kTogether = kSplitTogether<kBF16>;
  const int chunk =
      (static_cast<int>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp) * kTogether;
  Part part;
  if (!find_part(args, 0, tile, static_cast<int>(blockIdx.z), tile_rows, part)) return;
  if (chunk >= chunks || group * kGroupRows >= part.row_count) return;
  const int64_t tiles = gridDim.y / groups_of_tile;
  split_chunks<kBF16, kTogether>(args, part, blockIdx.z * tiles + tile, group, chunk, tile_rows,
                                 chunks, scratch);
}

struct NormSplitArgs {
  const float* x = nullptr;  // [rows, cols]
  int64_t x_stride = 0;
  const float* weight = nullptr;
  float eps = 0.0f;
  void* normed = nullptr;
  int64_t normed_stride = 0;
  int rows = 0;
  int cols = 0;
  int tile_rows = 0;
  int chunks = 0;
  uint4* scratch = nullptr;
};

// Block x: row, with those that fill up the last eight. To the bit what rms_norm and split_kernel
// make of it.
template <bool kBF16>
__global__ void __launch_bounds__(kThreads)
    norm_split_kernel(const __grid_constant__ NormSplitArgs args) {
  __shared__ float sums[kThreads / kWarp];
  let_next_start();
  wait_for_previous();
  const int place = static_cast<int>(blockIdx.x);
  const int row = min(place, args.rows - 1);  // what fills up is never stored: any row will do
  const float* from = args.x + row * args.x_stride;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < args.cols; i += kThreads)
    squares = __fmaf_rn(from[i], from[i], squares);
  const float factor = norm_factor(block_sum<kThreads>(squares, sums), args.cols, args.eps);
  const int group = place % args.tile_rows / kGroupRows;
  for (int tile = threadIdx.x; tile < args.chunks * kChunkTiles; tile += kThreads) {
    Terms x[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int input = tile * kTileInputs + 4 * q;
      const bool is_in = input < args.cols;
      float4 four = load_four<false, true>(from, input, args.cols).four;
      const float4 w =
          is_in ? *reinterpret_cast<const float4*>(args.weight + input) : make_float4(0, 0, 0, 0);
      four = make_float4(four.x * factor * w.x, four.y * factor * w.y, four.z * factor * w.z,
                         four.w * factor * w.w);
      x[q] = split(four);
      if (!is_in || place != row) continue;
      const int64_t at = row * args.normed_stride + input;
      if constexpr (kBF16)
        *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(args.normed) + at) =
            make_uint2(x[q].high[0], x[q].high[1]);
      else
        *reinterpret_cast<float4*>(static_cast<float*>(args.normed) + at) = four;
    }
    store_terms<kBF16>(x,
                       chunk_of<kBF16>(args.scratch, place / args.tile_rows, args.chunks,
                                       tile / kChunkTiles, group, args.tile_rows),
                       term_bytes(args.tile_rows), place % kGroupRows, tile % kChunkTiles);
  }
}

template <bool kBF16>
void launch(cudaStream_t stream, const GemmArgs& args, void* scratch, bool is_split,
            const SplitProduct* along) {
  const auto chunks = static_cast<int>(chunk_count(args));
  const int tile_rows = block_rows(args);
  constexpr int kBlockChunks = kThreads / kWarp * kSplitTogether<kBF16>;
  const dim3 grid(static_cast<unsigned>((chunks + kBlockChunks - 1) / kBlockChunks),
                  static_cast<unsigned>(row_tiles(args, tile_rows) * (tile_rows / kGroupRows)),
                  static_cast<unsigned>(split_groups(args)));
  if (!is_split && tile_rows == kRingRows && ring_splits_rows(args))
    return ring_product(stream, args, nullptr);
  if (!is_split)
    launch_early(stream, grid, kThreads, 0, split_kernel<kBF16>, args, tile_rows, chunks,
                 static_cast<uint4*>(scratch));
  if (tile_rows < kWideRows) return ring_product(stream, args, scratch, along);
  large_product(stream, args, scratch);
}

}  // namespace

int wide_tile_rows(int64_t pairs, int64_t experts) {
  // Most tiles shall be their expert's only one, since every tile reads the weights.
  const int64_t twice_the_mean = 2 * pairs / std::max<int64_t>(experts, 1);
  if (twice_the_mean < 6) return 0;  // gemm() reads no slower
  for (const int rows : {16, 32})
    if (twice_the_mean <= rows) return rows;
  constexpr int64_t kManyRows = 64;
  return twice_the_mean < 2 * kManyRows ? kRingRows : kWideRows;
}

bool is_wide(const GemmArgs& args) {
  const bool enough = args.tiles != nullptr ? args.wide_tiles : args.rows >= kLeastWideRows;
  return enough && has_vector_rows(args) && args.norm_weight == nullptr &&
         args.beside.weight == nullptr;
}

size_t wide_scratch_bytes(const GemmArgs& args) {
  const int tile_rows = block_rows(args);
  return static_cast<size_t>(split_groups(args) * row_tiles(args, tile_rows) * chunk_count(args) *
                             terms_of(args.x_is_bf16) * term_bytes(tile_rows));
}

bool wide_gates_rows(const GemmArgs& args) {
  return is_wide(args) && args.groups == 1 && args.n_out % (2 * kTileOutputs) == 0;
}

bool has_small_tiles(const GemmArgs& args) {
  return block_rows(args) < kWideRows;
}

bool takes_beside(const GemmArgs& args, const GemmArgs& beside) {
  return is_split_alike(args, beside) && block_rows(args) < kWideRows && !beside.gated &&
         args.groups == 1 && args.rows == beside.rows && args.x == beside.x &&
         !(args.gated && args.out_is_bf16);
}

bool takes_along(const GemmArgs& experts, const GemmArgs& other) {
  return experts.tiles != nullptr && experts.gated && !experts.x_is_bf16 &&
         experts.tile_rows < kWideRows && experts.beside.weight == nullptr &&
         other.tiles == nullptr && other.groups == 1 && !other.gated && !other.x_is_bf16 &&
         other.beside.weight == nullptr && is_wide(other) && block_rows(other) < kWideRows;
}

SplitOut split_out_of(const GemmArgs& next, void* scratch) {
  return {scratch, block_rows(next), static_cast<int>(chunk_count(next))};
}

bool can_split_for(const GemmArgs& args, const GemmArgs& next) {
  // Otherwise of heads, whose results follow each other, are added to nothing and end as sums.
  const bool of_heads = args.groups > 1 && args.n_out % kTileOutputs == 0 &&
                        args.out_group == args.n_out && next.n_in == args.groups * args.n_out &&
                        !args.accumulate && args.scale == 1.0f && args.bias == nullptr &&
                        block_rows(args) < kWideRows;
  if (!is_wide(args) || !is_wide(next) || next.n_in % (kChunkTiles * kTileInputs) != 0 ||
      (args.tiles == nullptr) != (next.tiles == nullptr))
    return false;
  // A tile may be cut into several of the next only by large_product's bulk copies.
  const int rows = block_rows(args);
  const bool fits = block_rows(next) % rows == 0 ||
                    (args.x_is_bf16 && args.tiles == nullptr && rows == kWideRows);
  return fits && (args.gated ? args.x_is_bf16 == next.x_is_bf16 : of_heads && !next.x_is_bf16);
}

bool norms_and_splits(const Rows& x, const float* weight, const GemmArgs& product) {
  return x.element == Element::kF32 && x.stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(weight) % 16 == 0 && is_wide(product) &&
         product.tiles == nullptr && product.groups == 1 && product.x_rows == nullptr;
}

void norm_and_split(cudaStream_t stream, const Rows& x, const float* weight, float eps,
                    const Rows& normed, const GemmArgs& product, void* scratch) {
  const NormSplitArgs args = {.x = static_cast<const float*>(x.data),
                              .x_stride = x.stride,
                              .weight = weight,
                              .eps = eps,
                              .normed = normed.data,
                              .normed_stride = normed.stride,
                              .rows = static_cast<int>(x.rows),
                              .cols = static_cast<int>(x.cols),
                              .tile_rows = block_rows(product),
                              .chunks = static_cast<int>(chunk_count(product)),
                              .scratch = static_cast<uint4*>(scratch)};
  const dim3 grid(static_cast<unsigned>((x.rows + kGroupRows - 1) / kGroupRows * kGroupRows));
  launch_early(stream, grid, kThreads, 0,
               product.x_is_bf16 ? norm_split_kernel<true> : norm_split_kernel<false>, args);
}

bool is_split_alike(const GemmArgs& args, const GemmArgs& other) {
  return is_wide(args) && is_wide(other) && args.tiles == other.tiles &&
         block_rows(args) == block_rows(other);
}

void wide_product(cudaStream_t stream, const GemmArgs& args, void* scratch, bool is_split,
                  const SplitProduct* along) {
  args.x_is_bf16 ? launch<true>(stream, args, scratch, is_split, along)
                 : launch<false>(stream, args, scratch, is_split, along);
}

}  // namespace foresail::cuda
