// Stands in for the CUDA device in builds without it.
#include "base/error.h"
#include "kernels/cuda/cuda_kernels.h"

namespace foresail {

bool built_with_cuda() {
  return false;
}

std::optional<CudaDevice> find_cuda_device(std::string* why) {
  if (why != nullptr) *why = "this build has no CUDA device: configure with -DFORESAIL_CUDA=ON";
  return std::nullopt;
}

namespace {

[[noreturn]] void refuse() {
  std::string why;
  find_cuda_device(&why);
  throw_error(ErrorCode::kDevice, "--device cuda: {}", why);
}

}  // namespace

double probe_cuda_copy() {
  refuse();
}

uint64_t cuda_expert_bytes(int64_t, int64_t, int64_t) {
  return 0;
}

uint64_t cuda_expanded_bytes(int64_t, int, int, int, int) {
  return 0;
}

std::unique_ptr<KernelSet> create_cuda_kernels(const CudaOptions&) {
  refuse();
}

}  // namespace foresail
