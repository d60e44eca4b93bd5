// The oracle of every kernel test: float64 accumulation, obvious loops, one thread, no speed.
// Weights are kept as f32. Owner: whoever created it. Thread rule: one caller.
#pragma once

#include <memory>

#include "kernels/kernel_set.h"

namespace foresail {

// act_dtype (kF32 or kBF16) is only what act_dtype() says: outputs follow the views given.
std::unique_ptr<KernelSet> create_ref_kernels(DType act_dtype);

}  // namespace foresail
