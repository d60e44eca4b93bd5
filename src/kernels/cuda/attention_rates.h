// What the CUDA set knows of its own speed at attention. Plain arithmetic, no device; the choice
// that follows is a function of shapes and of the number of multiprocessors, never of a clock.
#pragma once

#include "kernels/attention_rates.h"

namespace foresail::cuda {

// By what serves latent_attention.
enum class AbsorbedKernel {
  kTensorCores,  // sm90/mla_decode.h
  kFixedCut,     // the same, keys cut by each row's own length (CudaOptions::deterministic)
  kGeneral,      // latent.h
};

AttentionRates attention_rates(AbsorbedKernel absorbed, int multiprocessors);

}  // namespace foresail::cuda
