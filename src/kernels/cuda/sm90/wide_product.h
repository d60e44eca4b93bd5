// Products of many rows with packed bf16 weights (gemm.h) on Hopper's warpgroup instructions: about
// three times as fast as gemm() there, in another order of sums. What a row gives does not depend
// on the rows beside it, but differs from what gemm() gives by a rounding of float32 sums.
// Stateless; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/gemm.h"

namespace foresail::cuda {

constexpr int kWideRows = 128;  // of a block, and of an expert's tile

// Whether there are rows enough, and their layout is one that wide_product takes: aligned to four
// elements, no `norm_weight`, no `beside`, tiles of kWideRows.
bool is_wide(const GemmArgs& args);

// Device memory that wide_product writes and reads: the rows, split into bf16 terms in the order in
// which the tensor cores read them; aligned to 16 bytes.
size_t wide_scratch_bytes(const GemmArgs& args);

// The device must be an sm_90; is_wide(args).
void wide_product(cudaStream_t stream, const GemmArgs& args, void* scratch);

}  // namespace foresail::cuda
