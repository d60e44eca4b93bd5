// Queries of the kernels for an e4m3 cache: a row is its scale times the sum of two e4m3 terms, of
// which the second is what the first leaves over. With a power of two as the scale that is exact:
// bf16 has 8 significant bits, the first term takes 4 to nearest, and what is left is a multiple of
// the last bit from -8 to 8. Only values below 1/1024 of the row's largest lose bits.
#pragma once

#include "kernels/cuda/sm90/mla_walker.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mla {

// Writes the rows of a segment into shared memory as an operand of 2 * kRows lines, chunks of 128
// codes with the 128-byte swizzle: first terms of all rows, then second terms. row_scale[row]: the
// base-2 score that a product of 1 stands for. Warp `warp` of kWarps does every kWarps-th row. Rows
// that the segment does not have become zero.
// kAtOnce: rows that a warp loads together.
template <int kRows, int kWarps, int kAtOnce>
__device__ __forceinline__ void store_query_terms(const KernelParams& p, const RowRange& rows,
                                                  uint8_t* queries, float* row_scale, int warp) {
  constexpr int kUnits = kKeyDim / 8;  // of 8 dims, 16 bytes
  constexpr int kPerLane = (kUnits + 31) / 32;
  constexpr int kRowsAWarp = kRows / kWarps;
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int first = 0; first < kRowsAWarp; first += kAtOnce) {
    uint32_t pairs[kAtOnce][kPerLane][4];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int row = (first + r) * kWarps + warp;
      const uint4* from = reinterpret_cast<const uint4*>(
          p.query + static_cast<int64_t>(rows.first + row) * kKeyDim);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int unit = i * 32 + lane;
        uint4 loaded{0, 0, 0, 0};
        if (row < rows.count && unit < kUnits) loaded = __ldg(from + unit);
        pairs[r][i][0] = loaded.x;
        pairs[r][i][1] = loaded.y;
        pairs[r][i][2] = loaded.z;
        pairs[r][i][3] = loaded.w;
      }
    }
    float largest[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      largest[r] = 0.f;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 value = ptx::unpack_bf16(pairs[r][i][j]);
          largest[r] = fmaxf(largest[r], fmaxf(fabsf(value.x), fabsf(value.y)));
        }
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        largest[r] = fmaxf(largest[r], __shfl_xor_sync(~0u, largest[r], step));
      }
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int row = (first + r) * kWarps + warp;
      // Exponent bits that make the largest value 128 to 256. A tiny row is as good as zero, and
      // its inverse must be finite.
      const uint32_t exponent = __float_as_uint(largest[r]) >> 23;
      const bool none = exponent < 16;
      const float inverse = none ? 0.f : __uint_as_float((2 * 127 + 7 - exponent) << 23);
      if (lane == 0) {
        row_scale[row] = p.scale_log2 * (none ? 1.f : __uint_as_float((exponent - 7) << 23));
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int unit = i * 32 + lane;
        if (unit >= kUnits) break;
        uint32_t codes[4], rest[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 value = ptx::unpack_bf16(pairs[r][i][j]);
          const float x = value.x * inverse, y = value.y * inverse;
          codes[j] = ptx::pack_codes(x, y);
          const float2 rounded = ptx::unpack_code_pair(codes[j]);
          rest[j] = ptx::pack_codes(x - rounded.x, y - rounded.y);
        }
        uint8_t* to = queries + unit / 16 * (2 * kRows * 128) + row * 128 +
                      ((unit % 16 / 2 ^ (row & 7)) << 4) + unit % 2 * 8;
        *reinterpret_cast<uint2*>(to) = {codes[0] | codes[1] << 16, codes[2] | codes[3] << 16};
        *reinterpret_cast<uint2*>(to + kRows * 128) = {rest[0] | rest[1] << 16,
                                                       rest[2] | rest[3] << 16};
      }
    }
  }
  ptx::fence_proxy_async();
}

}  // namespace foresail::cuda::mla
