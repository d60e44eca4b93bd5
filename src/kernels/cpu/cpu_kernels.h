// The fast host device. Chooses an instruction set at run time; print name() at start-up.
// Owner: the executor. Thread rule: one caller; work is spread over the given pool.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernel_set.h"
#include "tensor/dtype.h"

namespace foresail {

struct CpuOptions {
  DType dtype = DType::kBF16;  // of weights and GEMM inputs: kF32 or kBF16
  std::string isa = "auto";    // "auto": the best this machine has; else a name of available_isas()
  ThreadPool* pool = nullptr;  // not owned; outlives the set
  bool reference_attention = false;  // attention by the `ref` set: slow, float64
};

// Instruction sets this machine can run, best first: avx512bf16 avx512 avx2 scalar.
std::vector<std::string_view> available_isas();

// Throws Error{kUsage} for an instruction set that is unknown or that the machine lacks.
std::unique_ptr<KernelSet> create_cpu_kernels(const CpuOptions& options);

}  // namespace foresail
