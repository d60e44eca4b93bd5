// How a kernel is launched that may start before the one before it in the stream has ended. It
// calls wait_for_previous() (device.cuh) in every thread before it touches anything that another
// kernel writes or reads, and before it ends.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

namespace foresail::cuda {

// Whether the device knows programmatic dependent launch.
inline bool starts_early() {
  static const bool known = [] {
    int device = 0;
    int major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  return known;
}

// Of the device.
inline int processor_count() {
  static const int count = [] {
    int device = 0;
    int multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    return multiprocessors;
  }();
  return count;
}

// Errors are left to cudaGetLastError().
template <typename... Arguments>
void launch_early(cudaStream_t stream, dim3 grid, int threads, size_t shared_bytes,
                  void (*kernel)(Arguments...),
                  const std::type_identity_t<std::remove_cv_t<Arguments>>&... arguments) {
  // More than 48 KiB, a kernel's own included, have to be asked for.
  if (shared_bytes > 0)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = starts_early() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace foresail::cuda
