// latent_inputs (latent_inputs.h) for some hundred rows, in one launch: the product that absorbs
// the queries, in blocks of ring_product that split their rows themselves, and before them blocks
// that rotate a row and write its row of the cache. To the bit what rotate_rows and wide_product
// make one after the other.
#pragma once

#include "kernels/cuda/latent_inputs.h"

namespace foresail::cuda {

// `product`: that of the heads, for wide_product.
bool fits_wide_inputs(const LatentInputsArgs& args, const GemmArgs& product);
void wide_inputs(cudaStream_t stream, const LatentInputsArgs& args, const GemmArgs& product);

}  // namespace foresail::cuda
