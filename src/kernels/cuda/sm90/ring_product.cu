// The kernels around ring_block().
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/ring_block.cuh"
#include "kernels/cuda/sm90/ring_product.h"

namespace foresail::cuda {
namespace {

template <int kTiles, int kRows, bool kBF16, bool kGated, bool kAlone, bool kSplits>
__global__ void __launch_bounds__(kRingThreads, 2)
    ring_kernel(const __grid_constant__ GemmArgs args, int chunks, const std::byte* split) {
  let_next_start();
  ring_block<kTiles, kRows, kBF16, kGated, kAlone, kSplits>(args, chunks, split, blockIdx,
                                                            static_cast<int>(gridDim.y));
}

// Blocks of `along`, 64 outputs each, and behind them those of the experts' gate and up. The first
// are few and short, so the launch ends with what it is long by.
template <int kRows>
__global__ void __launch_bounds__(kRingThreads, 2)
    ring_along_kernel(const __grid_constant__ GemmArgs args, int chunks, const std::byte* split,
                      const __grid_constant__ GemmArgs along, int along_chunks,
                      const std::byte* along_split) {
  let_next_start();
  const int along_width = block_count(along.n_out, 64);
  const int along_blocks = along_width * block_count(along.rows, kRingRows);
  const int index = static_cast<int>(blockIdx.x) - along_blocks;
  if (index < 0) {
    const uint3 block = {blockIdx.x % along_width, blockIdx.x / along_width, 0};
    return ring_block<1, kRingRows, false, false, false>(along, along_chunks, along_split, block,
                                                         0);
  }
  const int width = block_count(args.n_out / 2, 64);
  const uint3 block = {static_cast<unsigned>(index % width), static_cast<unsigned>(index / width),
                       0};
  ring_block<2, kRows, false, true, false>(args, chunks, split, block, 0);
}

template <int kTiles, int kRows, bool kBF16, bool kGated, bool kAlone, bool kSplits = false>
void launch(cudaStream_t stream, const GemmArgs& args, const dim3& grid, const void* rows) {
  launch_early(stream, grid, kRingThreads, Ring<kTiles, kRows, kBF16, kAlone>::kBytes,
               ring_kernel<kTiles, kRows, kBF16, kGated, kAlone, kSplits>, args,
               static_cast<int>(chunk_count(args)), static_cast<const std::byte*>(rows));
}

template <int kRows>
void launch_along(cudaStream_t stream, const GemmArgs& args, const void* rows,
                  const SplitProduct& along) {
  const dim3 first = ring_grid(args, 64, kRows);
  const dim3 second = ring_grid(along.args, 64, kRingRows);
  launch_early(
      stream, dim3(first.x * first.y + second.x * second.y), kRingThreads,
      std::max(Ring<2, kRows, false, false>::kBytes, Ring<1, kRingRows, false, false>::kBytes),
      ring_along_kernel<kRows>, args, static_cast<int>(chunk_count(args)),
      static_cast<const std::byte*>(rows), along.args, static_cast<int>(chunk_count(along.args)),
      static_cast<const std::byte*>(along.rows));
}

template <int kRows>
void launch_experts(cudaStream_t stream, const GemmArgs& args, const void* rows,
                    const SplitProduct* along) {
  if (along != nullptr) return launch_along<kRows>(stream, args, rows, *along);
  if (args.gated) {
    const dim3 grid = ring_grid(args, 64, kRows);
    return args.x_is_bf16 ? launch<2, kRows, true, true, false>(stream, args, grid, rows)
                          : launch<2, kRows, false, true, false>(stream, args, grid, rows);
  }
  const dim3 grid = ring_grid(args, 128, kRows);
  args.x_is_bf16 ? launch<2, kRows, true, false, false>(stream, args, grid, rows)
                 : launch<2, kRows, false, false, false>(stream, args, grid, rows);
}

template <bool kBF16>
void launch_gated(cudaStream_t stream, const GemmArgs& args, const void* rows) {
  const dim3 grid = ring_grid(args, 64, kRingRows);
  if (fits_processors(grid, 1))
    return launch<2, kRingRows, kBF16, true, true>(stream, args, grid, rows);
  launch<2, kRingRows, kBF16, true, false>(stream, args, grid, rows);
}

// With twice the outputs a block reads rows half as often, and is slower by itself.
template <bool kBF16>
void launch_matrix(cudaStream_t stream, const GemmArgs& args, const void* rows) {
  const dim3 small = ring_grid(args, 64, kRingRows);
  if (rows == nullptr)
    return launch<1, kRingRows, kBF16, false, true, true>(stream, args, small, nullptr);
  if (fits_processors(small, 1))
    return launch<1, kRingRows, kBF16, false, true>(stream, args, small, rows);
  if (fits_processors(small, 2))
    return launch<1, kRingRows, kBF16, false, false>(stream, args, small, rows);
  launch<2, kRingRows, kBF16, false, false>(stream, args, ring_grid(args, 128, kRingRows), rows);
}

}  // namespace

bool ring_splits_rows(const GemmArgs& args) {
  return args.groups > 1 && args.x_group != 0 && !args.gated && args.tiles == nullptr &&
         args.beside.weight == nullptr && fits_processors(ring_grid(args, 64, kRingRows), 1) &&
         (args.x_is_bf16 ? holds_all_rows<1, true, true>(args)
                         : holds_all_rows<1, false, true>(args));
}

void ring_product(cudaStream_t stream, const GemmArgs& args, const void* rows,
                  const SplitProduct* along) {
  if (args.tiles != nullptr) {
    if (args.tile_rows == 16) return launch_experts<16>(stream, args, rows, along);
    if (args.tile_rows == 32) return launch_experts<32>(stream, args, rows, along);
    return launch_experts<kRingRows>(stream, args, rows, along);
  }
  if (args.gated)
    return args.x_is_bf16 ? launch_gated<true>(stream, args, rows)
                          : launch_gated<false>(stream, args, rows);
  args.x_is_bf16 ? launch_matrix<true>(stream, args, rows)
                 : launch_matrix<false>(stream, args, rows);
}

}  // namespace foresail::cuda
