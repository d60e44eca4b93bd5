#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/expanded.h"

namespace foresail::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTileRows = 16 * kWarps;  // queries of a block, 16 of each warp
constexpr int kPad = 8;                 // bf16 between rows of shared memory: no bank conflicts
constexpr float kLog2e = 1.4426950408889634f;

constexpr int round_up(int size, int unit) {
  return (size + unit - 1) / unit * unit;
}

// Exact tiles hold two terms of every number.
constexpr int tile_keys(bool exact) {
  return exact ? 32 : 64;
}

__device__ __forceinline__ void load_fragments(const __nv_bfloat16* at, uint32_t (&out)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

__device__ __forceinline__ void load_transposed(const __nv_bfloat16* at, uint32_t (&out)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ float rest_of(float value) {
  return value - __bfloat162float(__float2bfloat16_rn(value));
}

// Rows of bf16 in shared memory, twice where the second terms are kept too.
struct Tile {
  __nv_bfloat16* terms;  // [rows][stride]
  int stride;
  int rows;
  __device__ __nv_bfloat16* at(int row, int col, int term = 0) const {
    return terms + (term * rows + row) * stride + col;
  }
};

__device__ __forceinline__ void store(const Tile& tile, int row, int col, float value) {
  *tile.at(row, col) = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void store(const Tile& tile, int row, int col, float2 value) {
  *reinterpret_cast<uint32_t*>(tile.at(row, col)) = pack_pair(value.x, value.y);
}
__device__ __forceinline__ void store_rest(const Tile& tile, int row, int col, float value) {
  *tile.at(row, col, 1) = __float2bfloat16_rn(rest_of(value));
}
__device__ __forceinline__ void store_rest(const Tile& tile, int row, int col, float2 value) {
  *reinterpret_cast<uint32_t*>(tile.at(row, col, 1)) =
      pack_pair(rest_of(value.x), rest_of(value.y));
}

// Columns [col, col + width) of every row of a tile from source(row), a row of f32 or null (zeros),
// float or float2 at a time. What is read is written by no block of the kernel.
template <bool kExact, typename T, typename Source>
__device__ __forceinline__ void fill(const Tile& tile, int col, int width, const Source& source) {
  constexpr int kStep = sizeof(T) / sizeof(float);
  constexpr int kAtOnce = 4;  // rows on their way: kWarps * kAtOnce divides every tile's rows
  for (int first = threadIdx.x / kWarp; first < tile.rows; first += kWarps * kAtOnce)
    for (int d = threadIdx.x % kWarp * kStep; d < width; d += kWarp * kStep) {
      T values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float* from = source(first + i * kWarps);
        values[i] = from == nullptr ? T{} : __ldg(reinterpret_cast<const T*>(from + d));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        store(tile, first + i * kWarps, col + d, values[i]);
        if constexpr (kExact) store_rest(tile, first + i * kWarps, col + d, values[i]);
      }
    }
}

__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}

__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}

// Block x: head; y: tile of queries, the last ones, which see most, first. A thread holds numbers
// of two queries: rows lane / 4 and lane / 4 + 8 of its warp's sixteen. `even`: all dimensions and
// strides are.
template <bool kExact, int kValueDim>
__global__ void __launch_bounds__(kThreads, kExact || kValueDim > 128 ? 1 : 2)
    attention_kernel(ExpandedArgs args, bool even) {
  constexpr int kKeys = tile_keys(kExact);
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  const int query_dim = args.nope_dim + args.rope_dim;
  const int padded_dim = round_up(query_dim, 16);
  const int terms = kExact ? 2 : 1;
  const Tile queries = {shared, padded_dim + kPad, kTileRows};
  const Tile keys = {queries.terms + terms * kTileRows * queries.stride, padded_dim + kPad, kKeys};
  const Tile values = {keys.terms + terms * kKeys * keys.stride, kValueDim + kPad, kKeys};

  const int head = static_cast<int>(blockIdx.x);
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t first_row = int64_t{gridDim.y - 1 - blockIdx.y} * kTileRows;
  const int row_count = static_cast<int>(min(int64_t{kTileRows}, args.rows - first_row));
  const auto visible_to = [&](int64_t row) {
    const int64_t seen = args.causal ? args.key_count - args.rows + 1 + row : args.key_count;
    return static_cast<int>(min(args.key_count, seen));
  };

  // What is past the dimensions stays zero; of the values it is never read from.
  for (int i = threadIdx.x; i < terms * (kTileRows + kKeys) * queries.stride; i += kThreads)
    shared[i] = __float2bfloat16_rn(0.0f);
  for (int i = threadIdx.x; i < terms * kKeys * values.stride; i += kThreads)
    values.terms[i] = __float2bfloat16_rn(0.0f);
  __syncthreads();
  const auto fill_columns = [&](const Tile& tile, int col, int width, const auto& source) {
    if (even)
      fill<kExact, float2>(tile, col, width, source);
    else
      fill<kExact, float>(tile, col, width, source);
  };
  fill_columns(queries, 0, query_dim, [&](int row) {
    return row < row_count ? args.q + (first_row + row) * args.q_stride + int64_t{head} * query_dim
                           : nullptr;
  });

  float largest[2] = {-INFINITY, -INFINITY};  // scores in units of log 2
  float sum[2] = {0.0f, 0.0f};
  float acc[kValueDim / 8][4] = {};
  int visible[2];
  for (int i = 0; i < 2; ++i) visible[i] = visible_to(first_row + warp * 16 + lane / 4 + 8 * i);
  const int most_visible = visible_to(first_row + row_count - 1);
  const float scale = args.softmax_scale * kLog2e;

  for (int begin = 0; begin < most_visible; begin += kKeys) {
    const int in_tile = static_cast<int>(min(int64_t{kKeys}, args.key_count - begin));
    const auto row_of = [&](const float* data, int64_t stride, int64_t offset) {
      return [=](int row) {
        return row < in_tile ? data + int64_t{begin + row} * stride + offset : nullptr;
      };
    };
    __syncthreads();  // the tiles before are still read
    fill_columns(
        keys, 0, args.nope_dim,
        row_of(args.k_nope, int64_t{args.heads} * args.nope_dim, int64_t{head} * args.nope_dim));
    fill_columns(keys, args.nope_dim, args.rope_dim, row_of(args.k_rope, args.rope_dim, 0));
    fill_columns(
        values, 0, args.value_dim,
        row_of(args.value, int64_t{args.heads} * args.value_dim, int64_t{head} * args.value_dim));
    __syncthreads();

    float scores[kKeys / 8][4] = {};
    for (int d = 0; d < padded_dim; d += 16) {
      uint32_t a[kExact ? 2 : 1][4];
      for (int term = 0; term < terms; ++term)
        load_fragments(queries.at(warp * 16 + lane % 16, d + lane / 16 * 8, term), a[term]);
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        const int key = j * 16 + lane % 8 + lane / 16 * 8;
        uint32_t b[4];
        load_fragments(keys.at(key, d + lane / 8 % 2 * 8), b);
        multiply(scores[2 * j], a[0], b[0], b[1]);
        multiply(scores[2 * j + 1], a[0], b[2], b[3]);
        if constexpr (kExact) {
          multiply(scores[2 * j], a[1], b[0], b[1]);
          multiply(scores[2 * j + 1], a[1], b[2], b[3]);
          load_fragments(keys.at(key, d + lane / 8 % 2 * 8, 1), b);
          multiply(scores[2 * j], a[0], b[0], b[1]);
          multiply(scores[2 * j + 1], a[0], b[2], b[3]);
        }
      }
    }

    float best[2] = {largest[0], largest[1]};
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = begin + j * 8 + lane % 4 * 2 + i % 2;
        scores[j][i] = key < visible[i / 2] ? scores[j][i] * scale : -INFINITY;
        best[i / 2] = fmaxf(best[i / 2], scores[j][i]);
      }
    float base[2];  // finite also where nothing is visible yet
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      best[i] = quad_max(best[i]);
      base[i] = best[i] == -INFINITY ? 0.0f : best[i];
      const float shrink = exp2f(largest[i] - base[i]);
      largest[i] = best[i];
      sum[i] *= shrink;
#pragma unroll
      for (int j = 0; j < kValueDim / 8; ++j) {
        acc[j][2 * i] *= shrink;
        acc[j][2 * i + 1] *= shrink;
      }
    }
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[j][i] = exp2f(scores[j][i] - base[i / 2]);
        sum[i / 2] += scores[j][i];
      }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t p[kExact ? 2 : 1][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = scores[2 * k + i / 2][i % 2 * 2];
        const float high = scores[2 * k + i / 2][i % 2 * 2 + 1];
        p[0][i] = pack_pair(low, high);
        if constexpr (kExact) p[1][i] = pack_pair(rest_of(low), rest_of(high));
      }
#pragma unroll
      for (int j = 0; j < kValueDim / 16; ++j) {
        uint32_t b[4];
        load_transposed(values.at(k * 16 + lane % 16, j * 16 + lane / 16 * 8), b);
        multiply(acc[2 * j], p[0], b[0], b[1]);
        multiply(acc[2 * j + 1], p[0], b[2], b[3]);
        if constexpr (kExact) {
          multiply(acc[2 * j], p[1], b[0], b[1]);
          multiply(acc[2 * j + 1], p[1], b[2], b[3]);
          load_transposed(values.at(k * 16 + lane % 16, j * 16 + lane / 16 * 8, 1), b);
          multiply(acc[2 * j], p[0], b[0], b[1]);
          multiply(acc[2 * j + 1], p[0], b[2], b[3]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float total = quad_sum(sum[i]);
    const int row = warp * 16 + lane / 4 + 8 * i;
    if (row >= row_count) continue;
    const bool empty = visible[i] <= 0;
    const int64_t at = first_row + row;
    if (lane % 4 == 0)
      args.lse[at * args.lse_stride + head] =
          empty ? -INFINITY : (largest[i] + log2f(total)) / kLog2e;
    float* out = args.out + at * args.out_stride + int64_t{head} * args.value_dim;
#pragma unroll
    for (int j = 0; j < kValueDim / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int d = j * 8 + lane % 4 * 2 + half;
        if (d < args.value_dim) out[d] = empty ? 0.0f : acc[j][2 * i + half] / total;
      }
  }
}

template <bool kExact, int kValueDim>
void launch(cudaStream_t stream, const ExpandedArgs& args, bool even) {
  const int row_elements = round_up(args.nope_dim + args.rope_dim, 16) + kPad;
  const int elements = (kExact ? 2 : 1) * ((kTileRows + tile_keys(kExact)) * row_elements +
                                           tile_keys(kExact) * (kValueDim + kPad));
  const int shared_bytes = elements * static_cast<int>(sizeof(__nv_bfloat16));
  cudaFuncSetAttribute(attention_kernel<kExact, kValueDim>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  const dim3 grid(static_cast<unsigned>(args.heads),
                  static_cast<unsigned>((args.rows + kTileRows - 1) / kTileRows));
  attention_kernel<kExact, kValueDim><<<grid, kThreads, shared_bytes, stream>>>(args, even);
}

template <bool kExact>
void launch_for(cudaStream_t stream, const ExpandedArgs& args, bool even) {
  if (args.value_dim <= 64)
    launch<kExact, 64>(stream, args, even);
  else if (args.value_dim <= 128)
    launch<kExact, 128>(stream, args, even);
  else
    launch<kExact, kMostExpandedDim>(stream, args, even);
}

// A block per key.
template <typename T, typename Latent>
__global__ void gather_kernel(Cache cache, const int32_t* table, int64_t first_key, Rows latent,
                              Rows k_rope) {
  const int64_t key = first_key + blockIdx.x;
  const int width = cache.latent_dim + cache.rope_dim;
  const int64_t slot =
      int64_t{table[key / cache.page_size]} * cache.page_size + key % cache.page_size;
  const T* from = static_cast<const T*>(cache.data) + slot * width;
  for (int d = threadIdx.x; d < width; d += blockDim.x) {
    const float value = load_value(from, d) * cache.scale;
    if (d < cache.latent_dim)
      store_value(static_cast<Latent*>(latent.data) + blockIdx.x * latent.stride, d, value);
    else
      store_value(static_cast<float*>(k_rope.data) + blockIdx.x * k_rope.stride,
                  d - cache.latent_dim, value);
  }
}

template <typename T>
void launch_gather(cudaStream_t stream, const Cache& cache, const int32_t* table, int64_t first_key,
                   const Rows& latent, const Rows& k_rope) {
  const auto blocks = static_cast<unsigned>(latent.rows);
  if (latent.element == Element::kBF16)
    gather_kernel<T, __nv_bfloat16>
        <<<blocks, 128, 0, stream>>>(cache, table, first_key, latent, k_rope);
  else
    gather_kernel<T, float><<<blocks, 128, 0, stream>>>(cache, table, first_key, latent, k_rope);
}

// Block x: row; y: head.
__global__ void merge_kernel(Rows other, Rows other_lse, Rows out, Rows lse) {
  const int64_t row = blockIdx.x;
  const int64_t head = blockIdx.y;
  const auto at = [&](const Rows& rows, int64_t col) {
    return static_cast<float*>(rows.data) + row * rows.stride + col;
  };
  const float a = *at(lse, head);
  const float b = *at(other_lse, head);
  __syncthreads();  // a is written below
  if (b == -INFINITY) return;
  const float base = fmaxf(a, b);
  const float weight_a = expf(a - base);
  const float weight_b = expf(b - base);
  const float total = weight_a + weight_b;
  const int64_t width = out.cols / gridDim.y;
  for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
    float* value = at(out, head * width + d);
    const float added = *at(other, head * width + d);
    *value = a == -INFINITY ? added : (*value * weight_a + added * weight_b) / total;
  }
  if (threadIdx.x == 0) *at(lse, head) = a == -INFINITY ? b : base + logf(total);
}

}  // namespace

void gather_latent(cudaStream_t stream, const Cache& cache, const int32_t* table, int64_t first_key,
                   const Rows& latent, const Rows& k_rope) {
  if (latent.rows == 0) return;
  if (cache.element == Element::kF32)
    launch_gather<float>(stream, cache, table, first_key, latent, k_rope);
  else if (cache.element == Element::kBF16)
    launch_gather<__nv_bfloat16>(stream, cache, table, first_key, latent, k_rope);
  else
    launch_gather<__nv_fp8_e4m3>(stream, cache, table, first_key, latent, k_rope);
}

void expanded_attention(cudaStream_t stream, const ExpandedArgs& args) {
  if (args.rows == 0) return;
  const bool even = (args.nope_dim | args.rope_dim | args.value_dim | args.q_stride) % 2 == 0;
  if (args.exact)
    launch_for<true>(stream, args, even);
  else
    launch_for<false>(stream, args, even);
}

void merge_attention(cudaStream_t stream, const Rows& other, const Rows& other_lse, const Rows& out,
                     const Rows& lse) {
  if (out.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(out.rows), static_cast<unsigned>(lse.cols));
  merge_kernel<<<grid, 128, 0, stream>>>(other, other_lse, out, lse);
}

}  // namespace foresail::cuda
