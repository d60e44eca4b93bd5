// Top-k and top-p for each row of logits: where the ranked tokens are cut. What stays is what the
// host's sampler keeps, to the token (kernels/token_truncation.h).
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/choice.h"

namespace foresail::cuda {

// The tokens that stay: with a greater key, or the same and no greater id. Key 0: all.
struct RankCut {
  uint32_t largest;  // key of the best token
  uint32_t key;
  int32_t id;
};
__device__ __forceinline__ bool stays(const RankCut& cut, uint32_t key, int64_t id) {
  return key > cut.key || (key == cut.key && id <= cut.id);
}

size_t truncation_workspace_bytes(int64_t rows);
// Gives the cuts, [rows], in the workspace.
const RankCut* find_cuts(cudaStream_t stream, const ChoiceArgs& args, void* workspace);

}  // namespace foresail::cuda
