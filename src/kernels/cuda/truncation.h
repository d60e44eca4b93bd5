// Top-k and top-p for each row of logits: where the ranked tokens are cut. What stays is what the
// host's sampler keeps, to the token (kernels/token_truncation.h).
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/choice.h"
#include "kernels/token_truncation.h"

namespace foresail::cuda {

size_t truncation_workspace_bytes(int64_t rows);
// Gives the cuts, [rows], in the workspace.
const RankCut* find_cuts(cudaStream_t stream, const ChoiceArgs& args, void* workspace);

}  // namespace foresail::cuda
