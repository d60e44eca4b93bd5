// Conversions between the number formats of the attention kernels, two or four values a register.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace foresail::cuda::ptx {

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two halves; values beyond the range of float16 become its largest.
__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Four e4m3 codes, exactly: the two in the low half of the word, and the two in its high half.
__device__ __forceinline__ void unpack_codes(uint32_t codes, uint32_t* low, uint32_t* high) {
  asm("{\n"
      ".reg .b16 first, second;\n"
      "mov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\n"
      "cvt.rn.f16x2.e4m3x2 %1, second;\n"
      "}\n"
      : "=r"(*low), "=r"(*high)
      : "r"(codes));
}

__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// Two e4m3 codes in the low half of the word; values beyond their range become the largest.
__device__ __forceinline__ uint32_t pack_codes(float low, float high) {
  uint32_t packed;
  asm("{\n"
      ".reg .b16 pair;\n"
      "cvt.rn.satfinite.e4m3x2.f32 pair, %1, %2;\n"
      "cvt.u32.u16 %0, pair;\n"
      "}\n"
      : "=r"(packed)
      : "f"(high), "f"(low));
  return packed;
}

// The values of two codes in the low half of the word, exactly.
__device__ __forceinline__ float2 unpack_code_pair(uint32_t codes) {
  uint32_t halves;
  asm("{\n"
      ".reg .b16 pair;\n"
      "cvt.u16.u32 pair, %1;\n"
      "cvt.rn.f16x2.e4m3x2 %0, pair;\n"
      "}\n"
      : "=r"(halves)
      : "r"(codes));
  return __half22float2(*reinterpret_cast<const __half2*>(&halves));
}

__device__ __forceinline__ float2 unpack_half(uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

}  // namespace foresail::cuda::ptx
