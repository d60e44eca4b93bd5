// The part of wide_product (wide_product.h) that works in tiles of up to kRingRows rows: weights,
// too, come by bulk copies into a ring in shared memory, which keeps enough of them on their way
// where there are few rows to multiply. The order of sums is that of wide_product.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/gemm.h"

namespace foresail::cuda {

constexpr int kRingRows = 64;  // of a tile, and all of its rows where they are no expert's

// Whether every block may split its rows itself, which saves a launch: a head's are read by few
// blocks, and those that fit the processors have room for all of their rows at once.
bool ring_splits_rows(const GemmArgs& args);

// args.tiles: of 16, 32 or 64 rows. `rows`: split (wide_layout.h) by the kernel before; null: by
// the blocks, where ring_splits_rows(). `along`: where takes_along() (wide_product.h) says so, or
// null.
void ring_product(cudaStream_t stream, const GemmArgs& args, const void* rows,
                  const SplitProduct* along = nullptr);

}  // namespace foresail::cuda
