// One launch of a kernel instance, in the way the caller asked for.
#pragma once

#include <atomic>

#include "kernels/cuda/sm90/mla_launch.h"
#include "kernels/cuda/sm90/mla_tagged_parts.cuh"

namespace foresail::cuda::mla {

template <auto kKernel, int kThreads, int kBytes, typename... Arguments>
MlaDecodeStatus launch(const LaunchPlace& place, const Arguments&... arguments) {
  static std::atomic<bool> prepared{false};
  if (!prepared.load(std::memory_order_acquire)) {
    if (cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) !=
        cudaSuccess) {
      return MlaDecodeStatus::kLaunchFailed;
    }
    prepared.store(true, std::memory_order_release);
  }
  cudaLaunchAttribute attribute{};
  if (place.how == MlaLaunch::kCooperative) {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  } else if (place.how == MlaLaunch::kOverlapped) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(place.blocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = place.stream;
  config.attrs = &attribute;
  config.numAttrs = place.how == MlaLaunch::kPlain ? 0 : 1;
  return cudaLaunchKernelEx(&config, kKernel, arguments...) == cudaSuccess
             ? MlaDecodeStatus::kOk
             : MlaDecodeStatus::kLaunchFailed;
}

// After `status` of the launch of the parts: merges them if the cut is fixed.
template <typename Pieces>
MlaDecodeStatus merge_fixed(MlaDecodeStatus status, const LaunchPlace& place,
                            const KernelParams& params) {
  if (status != MlaDecodeStatus::kOk || params.fixed_splits_log2 <= 0) return status;
  const int64_t warps = static_cast<int64_t>(params.batch) * params.row_blocks * Pieces::kCount;
  mla_fixed_merge_kernel<Pieces>
      <<<static_cast<unsigned>((warps + 7) / 8), 256, 0, place.stream>>>(params);
  return cudaPeekAtLastError() == cudaSuccess ? MlaDecodeStatus::kOk
                                              : MlaDecodeStatus::kLaunchFailed;
}

}  // namespace foresail::cuda::mla
