// The operations that `foresail bench kernels` times: every one of KernelSet, in shapes of the
// mla-mid model, with what each must move and compute.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/kernel_set.h"

namespace foresail {

struct KernelCase {
  std::string op;     // name in KernelSet
  std::string shape;  // for reading, and for --filter together with op
  // Of one call: weights and inputs read once, outputs written once. Multiply-adds count as two
  // operations; exponentials, divisions and comparisons as one each.
  double bytes = 0.0, operations = 0.0;
  // Calls in one run of the body, each with operands of its own: a few rows read their weights
  // and keys from memory, as they do in a model, and not from a cache that the last call filled.
  int calls = 1;
  // Allocates and fills the operands; the returned body owns them and borrows the set.
  std::function<std::function<void()>(KernelSet&)> prepare;
};

// `dtype`: of weights and GEMM inputs, kF32 or kBF16.
std::vector<KernelCase> kernel_cases(DType dtype);

}  // namespace foresail
