// One chunk of 64 inputs of the warpgroup products: weights in registers, rows in shared memory as
// wide_layout.h says.
#pragma once

#include "kernels/cuda/sm90/wgmma.h"
#include "kernels/cuda/sm90/wide_layout.h"

namespace foresail::cuda {

// Packed weights as they were loaded, to the operands that a product holds while the next chunk's
// are on their way.
template <int kTiles>
__device__ __forceinline__ void take_weights(const uint4 (&loaded)[kTiles][kChunkTiles],
                                             uint32_t (&a)[kTiles][kChunkTiles][4]) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int k = 0; k < kChunkTiles; ++k) {
      a[m][k][0] = loaded[m][k].x;
      a[m][k][1] = loaded[m][k].y;
      a[m][k][2] = loaded[m][k].z;
      a[m][k][3] = loaded[m][k].w;
    }
}

// acc = (adds ? acc : 0) + the chunk whose rows' descriptor is `line`; kTermBytes: from high terms
// to low ones. Issued and committed, not waited for.
template <bool kBF16, int kTermBytes, int kTiles, int kNumbers>
__device__ __forceinline__ void start_chunk(float (&acc)[kTiles][kNumbers],
                                            const uint32_t (&a)[kTiles][kChunkTiles][4],
                                            uint64_t line, bool adds) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) ptx::pin_registers(acc[m]);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kChunkTiles; ++k)
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      ptx::wgmma_registers<0>(acc[m], a[m][k], line + k * 32 / 16, adds || k > 0);
      if (!kBF16) ptx::wgmma_registers<0>(acc[m], a[m][k], line + (kTermBytes + k * 32) / 16, 1);
    }
  ptx::wgmma_commit();
}

}  // namespace foresail::cuda
