#include "engine/device.h"

#include "attention/attention_config.h"
#include "base/error.h"
#include "engine/memory_plan.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/ref/ref_kernels.h"

namespace foresail {
namespace {

void check_cuda_options(const ModelOptions& options, DType dtype) {
  if (dtype != DType::kBF16)
    throw_error(ErrorCode::kUsage,
                "options.device cuda multiplies bf16 weights: leave out options.dtype {} or choose "
                "options.device cpu",
                options.dtype);
  if (parse_attention_backend(options.attention_backend) == AttentionBackend::kReference)
    throw_error(
        ErrorCode::kUsage,
        "options.attention_backend reference runs on the host: choose options.device cpu for it");
}

}  // namespace

std::string resolve_device(const std::string& name) {
  if (name == "auto") return find_cuda_device() ? "cuda" : "cpu";
  if (name != "cpu" && name != "cuda" && name != "ref")
    throw_error(ErrorCode::kUsage, "options.device {} is unknown: choose cpu, cuda, auto or ref",
                name);
  return name;
}

uint64_t device_memory_bytes(const std::string& device) {
  if (device != "cuda") return available_memory_bytes();
  const std::optional<CudaDevice> gpu = find_cuda_device();
  return gpu ? gpu->free_bytes : 0;
}

std::unique_ptr<KernelSet> create_kernels(const ModelOptions& options, DType dtype,
                                          ThreadPool& threads) {
  if (options.device == "ref") return create_ref_kernels(dtype);
  if (options.device == "cuda") {
    check_cuda_options(options, dtype);
    return create_cuda_kernels(
        {.deterministic = options.deterministic, .graphs = !options.disable_cuda_graph});
  }
  return create_cpu_kernels(
      {.dtype = dtype,
       .isa = options.cpu_isa,
       .pool = &threads,
       .reference_attention =
           parse_attention_backend(options.attention_backend) == AttentionBackend::kReference});
}

}  // namespace foresail
