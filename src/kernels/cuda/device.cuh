// Small device functions that several kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace foresail::cuda {

constexpr int kWarp = 32;

// Programmatic dependent launch (Hopper on; nothing elsewhere). The next kernel in the stream may
// start once every block has said so; it waits for this one's results by itself.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Until everything before this kernel in the stream is done. A kernel launched to start early calls
// it in every thread before it touches anything that another kernel writes or reads.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float load_value(const float* data, int64_t i) {
  return data[i];
}
__device__ __forceinline__ float load_value(const __nv_bfloat16* data, int64_t i) {
  return __bfloat162float(data[i]);
}
__device__ __forceinline__ float load_value(const __half* data, int64_t i) {
  return __half2float(data[i]);
}
__device__ __forceinline__ float load_value(const __nv_fp8_e4m3* data, int64_t i) {
  return static_cast<float>(data[i]);
}
__device__ __forceinline__ void store_value(float* data, int64_t i, float value) {
  data[i] = value;
}
__device__ __forceinline__ void store_value(__nv_bfloat16* data, int64_t i, float value) {
  data[i] = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void store_value(__nv_fp8_e4m3* data, int64_t i, float value) {
  data[i] = __nv_fp8_e4m3(value);
}

// silu(gate) * up.
__device__ __forceinline__ float silu_times(float gate, float up) {
  return gate / (1.0f + expf(-gate)) * up;
}

// By which a row of so many squares is multiplied, and then by the norm's weights.
__device__ __forceinline__ float norm_factor(float squares, int64_t cols, float eps) {
  return rsqrtf(squares / static_cast<float>(cols) + eps);
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  return value;
}

// Of a block of kThreads; `scratch` holds kThreads / 32 floats. Every thread gets the sum.
template <int kThreads>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  __syncthreads();  // scratch may still be read
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += scratch[warp];
  return total;
}

}  // namespace foresail::cuda
