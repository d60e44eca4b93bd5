// Reference and data kernels of the MLA decode benchmark: obvious, float32, no shared code with the
// kernel under test. Owned by the benchmark.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace foresail::bench {

__device__ __forceinline__ uint32_t hash32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// About normal, mean 0, variance 1: four uniforms.
__device__ __forceinline__ float normal_value(uint64_t index, uint32_t seed) {
  const uint32_t h = hash32(static_cast<uint32_t>(index) ^ hash32(seed ^ (index >> 32)));
  const uint32_t g = hash32(h + 0x9e3779b9u);
  const float sum = (h & 0xffff) + (h >> 16) + (g & 0xffff) + (g >> 16);
  return (sum - 131070.f) * (1.f / 37837.f);
}

// An element of a cache of one type or the other.
__device__ __forceinline__ float cache_value(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ __forceinline__ float cache_value(__nv_fp8_e4m3 code) {
  return static_cast<float>(code);
}

// Values divided by `scale`, rounded to the type.
template <typename Element>
__global__ void fill_normal(Element* data, uint64_t count, uint32_t seed, float scale) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * blockDim.x) {
    data[i] = Element(normal_value(i, seed) / scale);
  }
}

// Rows [first, first + count) of the pool for each entry of `ranges` become NaN.
template <typename Element>
__global__ void poison_rows(Element* pool, const int2* ranges) {
  const int2 range = ranges[blockIdx.x];
  for (int i = threadIdx.x; i < range.y * 576; i += blockDim.x) {
    pool[int64_t{range.x} * 576 + i] = Element(NAN);
  }
}

// Keys of the i-th of `count` ranges are multiplied by (i + 1) / count, so that scores rise.
template <typename Element>
__global__ void raise_rows(Element* pool, const int2* ranges, int count) {
  const int2 range = ranges[blockIdx.x];
  const float factor = (blockIdx.x + 1.f) / count;
  for (int i = threadIdx.x; i < range.y * 576; i += blockDim.x) {
    Element& element = pool[int64_t{range.x} * 576 + i];
    element = Element(cache_value(element) * factor);
  }
}

struct ReferenceRow {
  int request;
  int row;  // q token * heads + head
};

// One block a row, 512 threads: scores by warps, then every thread owns one latent dim.
template <typename Element>
__global__ void __launch_bounds__(512)
    mla_reference(const __nv_bfloat16* query, const Element* pool, float cache_scale,
                  const int* table, const int* kv_end, const ReferenceRow* samples, float* output,
                  float* lse, int max_pages, int page_size, int q_len, int heads, float scale) {
  constexpr int kChunk = 128;
  __shared__ float q[576];
  __shared__ float score[kChunk];
  __shared__ int64_t place[kChunk];
  const ReferenceRow sample = samples[blockIdx.x];
  const int rows = q_len * heads;
  for (int i = threadIdx.x; i < 576; i += 512) {
    q[i] = __bfloat162float(query[(int64_t{sample.request} * rows + sample.row) * 576 + i]);
  }
  const int keys = kv_end[sample.request] - (q_len - 1 - sample.row / heads);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float maximum = -INFINITY, sum = 0.f, value = 0.f;
  for (int base = 0; base < keys; base += kChunk) {
    __syncthreads();
    for (int j = warp; j < kChunk; j += 16) {
      const int key = base + j;
      float dot = 0.f;
      if (key < keys) {
        const int page = table[int64_t{sample.request} * max_pages + key / page_size];
        const int64_t row = int64_t{page} * page_size + key % page_size;
        for (int i = lane; i < 576; i += 32) {
          dot += q[i] * (cache_value(pool[row * 576 + i]) * cache_scale);
        }
        for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(~0u, dot, step);
        if (lane == 0) place[j] = row * 576;
      }
      if (lane == 0) score[j] = key < keys ? dot * scale : -INFINITY;
    }
    __syncthreads();
    float chunk_max = maximum;
    for (int j = 0; j < kChunk; ++j) chunk_max = fmaxf(chunk_max, score[j]);
    const float keep = expf(maximum - chunk_max);
    maximum = chunk_max;
    sum *= keep;
    value *= keep;
    const int count = min(kChunk, keys - base);
    float chunk_sum = 0.f, chunk_value = 0.f;
#pragma unroll 8
    for (int j = 0; j < count; ++j) {
      const float p = expf(score[j] - maximum);
      chunk_sum += p;
      chunk_value += p * (cache_value(pool[place[j] + threadIdx.x]) * cache_scale);
    }
    sum += chunk_sum;
    value += chunk_value;
  }
  output[int64_t{blockIdx.x} * 512 + threadIdx.x] = sum > 0.f ? value / sum : 0.f;
  if (threadIdx.x == 0) lse[blockIdx.x] = sum > 0.f ? maximum + logf(sum) : -INFINITY;
}

// The stream floor: reads the same keys of kRowVectors x 16 bytes once, 16 keys a step and block.
template <int kRowVectors>
__global__ void __launch_bounds__(288)
    kvread(const uint4* pool, const int2* pieces, int count, uint4* sink) {
  constexpr int kLoads = 16 * kRowVectors / 288;
  uint4 mixed{0, 0, 0, 0};
  for (int piece = blockIdx.x; piece < count; piece += gridDim.x) {
    const int2 rows = pieces[piece];  // first pool row, rows
    const uint4* from = pool + int64_t{rows.x} * kRowVectors;
    const int vectors = rows.y * kRowVectors;
    uint4 v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = threadIdx.x + i * 288;
      v[i] = at < vectors ? __ldcs(from + at) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      mixed.x ^= v[i].x;
      mixed.y ^= v[i].y;
      mixed.z ^= v[i].z;
      mixed.w ^= v[i].w;
    }
  }
  // Never true for real data; keeps the loads alive.
  if ((mixed.x & mixed.y & mixed.z & mixed.w) == 0xfffffffeu) sink[threadIdx.x] = mixed;
}

}  // namespace foresail::bench
