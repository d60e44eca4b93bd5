// The GPU device. These functions exist in every build; without CUDA there is no device to find.
// Any thread may ask; the set has one caller.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/kernel_set.h"

namespace foresail {

struct CudaDevice {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  int driver_version = 0;  // as CUDA counts: 13000 is 13.0
};

// Whether this build has the CUDA device at all.
bool built_with_cuda();
// The device that would be used, or nothing: then `why`, if given, says what to change.
std::optional<CudaDevice> find_cuda_device(std::string* why = nullptr);

// Bytes per second of copies inside the device's memory, read and written bytes both counted: the
// probe that figures are put beside. Throws Error{kDevice} when there is no device.
double probe_cuda_copy();

// Passes that a set keeps recorded, and so many joined ones; one more and it begins anew.
constexpr int kMostRecordedPasses = 256;

// Bytes that a set takes, at most, for the rows of routed experts that it works on together; 0
// where there is no CUDA.
uint64_t cuda_expert_bytes(int64_t hidden, int64_t inner, int64_t experts);

// The same for so many keys of expanded attention, beside those that it is given.
uint64_t cuda_expanded_bytes(int64_t keys, int heads, int nope_dim, int rope_dim, int value_dim);

struct CudaOptions {
  // Batch-invariant throughout: attention takes the general kernel, which is slower.
  bool deterministic = false;
  // Passes of few rows are replayed as CUDA graphs.
  bool graphs = true;
};

// bf16 weights, f32 sums. Throws Error{kDevice} when there is no device.
std::unique_ptr<KernelSet> create_cuda_kernels(const CudaOptions& options);

}  // namespace foresail
