// Log probabilities of rows of logits: of the token that follows, and of the best ones. The
// arithmetic is that of kernels/token_terms.h: they are the host's, bit for bit.
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/choice.h"

namespace foresail::cuda {

size_t logprob_workspace_bytes(int64_t rows, int64_t cols);
// Of the logits as they lie, whatever changes them in the draw. Comes after choose_tokens. Rows
// that want none, and those that do not stand, leave `out`, [rows], as it is.
void row_logprobs(cudaStream_t stream, const ChoiceArgs& args, void* workspace, RowLogprobs* out);

}  // namespace foresail::cuda
