#include "kernels/cuda/sm90/wide_inputs.h"

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rotate_row.cuh"
#include "kernels/cuda/sm90/ring_block.cuh"
#include "kernels/cuda/sm90/wide_product.h"

namespace foresail::cuda {
namespace {

// Block x: a row to rotate; behind them the product's, whose neighbours read the same rows.
template <int kTiles>
__global__ void __launch_bounds__(kRingThreads, 2)
    wide_inputs_kernel(const __grid_constant__ LatentInputsArgs args, float inverse_scale,
                       const __grid_constant__ GemmArgs product, int chunks) {
  __shared__ float scratch[kSumWarps];
  let_next_start();
  const int index = static_cast<int>(blockIdx.x) - static_cast<int>(args.rows);
  if (index < 0) {
    wait_for_previous();
    return rotate_row_of<kRingThreads>(args, blockIdx.x, inverse_scale, scratch);
  }
  const int width = block_count(product.n_out, kTiles * 64);
  const int row_tiles = block_count(product.rows, kRingRows);
  const uint3 block = {static_cast<unsigned>(index % width),
                       static_cast<unsigned>(index / width % row_tiles),
                       static_cast<unsigned>(index / width / row_tiles)};
  ring_block<kTiles, kRingRows, false, false, false, true>(product, chunks, nullptr, block,
                                                           row_tiles);
}

// A head has few inputs, so the blocks ask for what they hold and several fit a processor.
template <int kTiles>
void launch(cudaStream_t stream, const LatentInputsArgs& args, const GemmArgs& product) {
  const dim3 grid = ring_grid(product, kTiles * 64, kRingRows);
  const auto chunks = static_cast<int>(chunk_count(product));
  const int bytes = chunks * Ring<kTiles, kRingRows, false, false>::kStageBytes + kAtomBytes;
  launch_early(stream, dim3(static_cast<unsigned>(args.rows) + grid.x * grid.y * grid.z),
               kRingThreads, static_cast<size_t>(bytes), wide_inputs_kernel<kTiles>, args,
               inverse_scale(args.cache), product, chunks);
}

}  // namespace

bool fits_wide_inputs(const LatentInputsArgs& args, const GemmArgs& product) {
  return args.row_scale == nullptr && !product.x_is_bf16 && has_small_tiles(product) &&
         holds_all_rows<2, false, false>(product);
}

void wide_inputs(cudaStream_t stream, const LatentInputsArgs& args, const GemmArgs& product) {
  if (fits_processors(ring_grid(product, 64, kRingRows), 2))
    return launch<1>(stream, args, product);
  launch<2>(stream, args, product);
}

}  // namespace foresail::cuda
