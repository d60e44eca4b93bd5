// expanded_attention (expanded.h) of heads of 128 + 64 and 128 numbers on Hopper's warpgroup
// instructions: FlashAttention-3's division of work (Shah et al., 2024). Keys and values are first
// rounded to bf16 and laid out as the tensor cores read them. A row's bits depend on nothing but
// its query and its own keys: every row takes its keys in tiles of 128 from key 0 on.
// Stateless; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/expanded.h"

namespace foresail::cuda {

// Whether heads are of that shape, numbers rounded to one term and rows aligned.
bool fits_tiled_attention(const ExpandedArgs& args);

// Device memory that tiled_attention writes and reads, aligned to 128 bytes.
size_t tiled_attention_bytes(const ExpandedArgs& args);

// The device must be an sm_90; fits_tiled_attention(args).
void tiled_attention(cudaStream_t stream, const ExpandedArgs& args, void* scratch);

}  // namespace foresail::cuda
