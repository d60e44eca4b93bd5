// Keys and values of expanded attention as its kernel copies them: bf16 tiles of 128 keys, in the
// 128-byte swizzle of wgmma.h, zeros past the last key.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/expanded.h"
#include "kernels/cuda/sm90/numbers.h"

namespace foresail::cuda::expanded {

constexpr int kNope = 128, kRope = 64, kValue = 128, kQuery = kNope + kRope;
constexpr int kTileKeys = 128;
constexpr int kChunk = 64;                           // numbers of a key in a line of 128 bytes
constexpr int kChunkBytes = kTileKeys * kChunk * 2;  // lines are keys
constexpr int kNopeBytes = kNope / kChunk * kChunkBytes;
constexpr int kRopeBytes = kRope / kChunk * kChunkBytes;
constexpr int kValueBytes = kValue / kChunk * kChunkBytes;

// A list of keys in device memory: for each head, tile by tile, keys without their rotated part,
// then values; the rotated parts, which all heads share; a counter of the kernel's.
struct Tiles {
  uint8_t* data;
  int count;  // of a head
  int heads;
  __host__ __device__ uint8_t* nope(int head, int tile) const {
    return data + (int64_t{head} * count + tile) * (kNopeBytes + kValueBytes);
  }
  __host__ __device__ uint8_t* value(int head, int tile) const {
    return nope(head, tile) + kNopeBytes;
  }
  __host__ __device__ uint8_t* rope(int tile) const {
    return nope(heads, 0) + int64_t{tile} * kRopeBytes;
  }
  __host__ __device__ int* counter() const { return reinterpret_cast<int*>(rope(count)); }
};

inline Tiles tiles_of(const ExpandedArgs& args, void* data) {
  return {static_cast<uint8_t*>(data),
          static_cast<int>((args.key_count + kTileKeys - 1) / kTileKeys), args.heads};
}

constexpr int kTileThreads = 256;

// kWidth numbers of every key of a tile.
template <int kWidth>
__device__ __forceinline__ void lay_out(const float* from, int64_t stride, int keys, uint8_t* to) {
  constexpr int kPieces = kWidth / 8;  // of a key, 16 bytes of bf16 each
  constexpr int kEach = kTileKeys * kPieces / kTileThreads;
  float4 numbers[kEach][2];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int key = (i * kTileThreads + threadIdx.x) / kPieces;
    const int piece = threadIdx.x % kPieces;
    const auto* at = reinterpret_cast<const float4*>(from + key * stride + piece * 8);
    for (int half = 0; half < 2; ++half)
      numbers[i][half] = key < keys ? __ldcs(at + half) : float4{};
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int key = (i * kTileThreads + threadIdx.x) / kPieces;
    const int piece = threadIdx.x % kPieces;
    const float4 low = numbers[i][0], high = numbers[i][1];
    *reinterpret_cast<uint4*>(to + piece / 8 * kChunkBytes + key * 128 +
                              ((piece % 8) ^ (key % 8)) * 16) =
        uint4{ptx::pack_bf16(low.x, low.y), ptx::pack_bf16(low.z, low.w),
              ptx::pack_bf16(high.x, high.y), ptx::pack_bf16(high.z, high.w)};
  }
}

// Block x: keys of a head, values of a head, and so on, last the rotated part; y: tile.
__global__ void __launch_bounds__(kTileThreads) tiles_kernel(ExpandedArgs args, Tiles tiles) {
  wait_for_previous();
  let_next_start();
  const int head = static_cast<int>(blockIdx.x) / 2;
  const int tile = static_cast<int>(blockIdx.y);
  const int64_t first = int64_t{tile} * kTileKeys;
  const int keys = static_cast<int>(min(int64_t{kTileKeys}, args.key_count - first));
  const int64_t width = int64_t{args.heads} * kNope;
  static_assert(kNope == kValue);
  if (head == args.heads) {
    if (tile == 0 && threadIdx.x == 0) *tiles.counter() = 0;
    lay_out<kRope>(args.k_rope + first * kRope, kRope, keys, tiles.rope(tile));
  } else if (blockIdx.x % 2 == 0) {
    lay_out<kNope>(args.k_nope + first * width + head * kNope, width, keys, tiles.nope(head, tile));
  } else {
    lay_out<kValue>(args.value + first * width + head * kValue, width, keys,
                    tiles.value(head, tile));
  }
}

}  // namespace foresail::cuda::expanded
