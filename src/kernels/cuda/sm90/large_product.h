// The part of wide_product (wide_product.h) that works in tiles of kWideRows rows: where there are
// so many that arithmetic is the limit, or nearly. The order of sums is that of wide_product.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/gemm.h"

namespace foresail::cuda {

// args.tiles: of kWideRows rows. `rows`: split (wide_layout.h) by the kernel before.
void large_product(cudaStream_t stream, const GemmArgs& args, const void* rows);

}  // namespace foresail::cuda
