#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/latent.h"

namespace foresail::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kHeads = 8;        // of a block: a key is loaded once for all of them
constexpr int kKeys = 64;        // scores held at once
constexpr int kSplitKeys = 128;  // of a block
constexpr int kDims = kMostLatentDim / kThreads;
// Rows worked on together: bounds the workspace of a long prefill.
constexpr int64_t kMostRows = 128;

int split_count(int keys) {
  return (keys + kSplitKeys - 1) / kSplitKeys;
}

// Per (row, head, split): c sums, then the largest score and the sum of exponentials.
__host__ __device__ constexpr int64_t partial_floats(int latent_dim) {
  return latent_dim + 2;
}

// Block x: split of keys; y: eight heads; z: row.
template <typename T>
__global__ void __launch_bounds__(kThreads) partial_kernel(LatentArgs args, int64_t first_row) {
  extern __shared__ float queries[];  // [kHeads][c + r]
  __shared__ float scores[kHeads][kKeys];
  __shared__ float shrink[kHeads];
  __shared__ int64_t offsets[kKeys];
  const int64_t row = first_row + blockIdx.z;
  const int visible = args.visible[row];
  const int key_begin = static_cast<int>(blockIdx.x) * kSplitKeys;
  if (key_begin >= visible) return;
  const int key_end = min(visible, key_begin + kSplitKeys);
  const int c = args.cache.latent_dim;
  const int width = c + args.cache.rope_dim;
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int heads = min(kHeads, args.heads - first_head);
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const auto* cache = static_cast<const T*>(args.cache.data);
  const int32_t* table = args.tables + int64_t{args.table_row[row]} * args.table_width;

  const float* q = args.q + row * args.q_stride + int64_t{first_head} * width;
  for (int i = threadIdx.x; i < kHeads * width; i += kThreads)
    queries[i] = i < heads * width ? q[i] : 0.0f;

  float largest[2] = {-INFINITY, -INFINITY};  // of heads 2 * warp and 2 * warp + 1
  float sum[2] = {0.0f, 0.0f};
  float acc[kHeads][kDims] = {};
  for (int begin = key_begin; begin < key_end; begin += kKeys) {
    const int keys = min(kKeys, key_end - begin);
    __syncthreads();
    if (threadIdx.x < keys) {
      const int key = begin + static_cast<int>(threadIdx.x);
      const int64_t slot = int64_t{table[key / args.cache.page_size]} * args.cache.page_size +
                           key % args.cache.page_size;
      offsets[threadIdx.x] = slot * width;
    }
    __syncthreads();
    for (int j = warp; j < keys; j += kWarps) {
      float dot[kHeads] = {};
      for (int d = lane; d < width; d += kWarp) {
        const float k = load_value(cache + offsets[j], d);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) dot[h] += queries[h * width + d] * k;
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float whole = warp_sum(dot[h]);
        if (lane == 0) scores[h][j] = whole * args.cache.scale * args.softmax_scale;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = 2 * warp + i;
      const float a = lane < keys ? scores[h][lane] : -INFINITY;
      const float b = lane + kWarp < keys ? scores[h][lane + kWarp] : -INFINITY;
      float best = fmaxf(a, b);
      for (int offset = kWarp / 2; offset > 0; offset /= 2)
        best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, offset));
      best = fmaxf(best, largest[i]);
      const float factor = expf(largest[i] - best);
      const float pa = expf(a - best);
      const float pb = expf(b - best);
      scores[h][lane] = pa;
      scores[h][lane + kWarp] = pb;
      sum[i] = sum[i] * factor + warp_sum(pa + pb);
      largest[i] = best;
      if (lane == 0) shrink[h] = factor;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
#pragma unroll
      for (int i = 0; i < kDims; ++i) acc[h][i] *= shrink[h];
    for (int j = 0; j < keys; ++j) {
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = static_cast<int>(threadIdx.x) + i * kThreads;
        if (d >= c) break;
        const float v = load_value(cache + offsets[j], d);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) acc[h][i] += scores[h][j] * v;
      }
    }
  }
  auto* partials = static_cast<float*>(args.workspace);
  const auto place = [&](int h) {
    return partials +
           ((int64_t{blockIdx.z} * args.heads + first_head + h) * gridDim.x + blockIdx.x) *
               partial_floats(c);
  };
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < kDims; ++i) {
      const int d = static_cast<int>(threadIdx.x) + i * kThreads;
      if (d < c) place(h)[d] = acc[h][i] * args.cache.scale;
    }
  for (int i = 0; i < 2; ++i)
    if (lane == 0 && 2 * warp + i < heads) {
      place(2 * warp + i)[c] = largest[i];
      place(2 * warp + i)[c + 1] = sum[i];
    }
}

// Block x: head; y: row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(LatentArgs args, int64_t first_row, int splits) {
  const int64_t row = first_row + blockIdx.y;
  const int visible = args.visible[row];
  if (visible <= 0) return;
  const int c = args.cache.latent_dim;
  const int used = (visible + kSplitKeys - 1) / kSplitKeys;
  const float* partials =
      static_cast<const float*>(args.workspace) +
      (int64_t{blockIdx.y} * args.heads + blockIdx.x) * splits * partial_floats(c);
  float largest = -INFINITY;
  for (int s = 0; s < used; ++s) largest = fmaxf(largest, partials[s * partial_floats(c) + c]);
  float total = 0.0f;
  for (int s = 0; s < used; ++s) {
    const float* partial = partials + s * partial_floats(c);
    total += partial[c + 1] * expf(partial[c] - largest);
  }
  T* out = static_cast<T*>(args.out) + row * args.out_stride + int64_t{blockIdx.x} * c;
  for (int d = threadIdx.x; d < c; d += kThreads) {
    float value = 0.0f;
    for (int s = 0; s < used; ++s) {
      const float* partial = partials + s * partial_floats(c);
      value += partial[d] * expf(partial[c] - largest);
    }
    store_value(out, d, value / total);
  }
}

template <typename T>
void launch_partial(cudaStream_t stream, const LatentArgs& args, int64_t first_row,
                    const dim3& grid) {
  const size_t bytes = sizeof(float) * kHeads * (args.cache.latent_dim + args.cache.rope_dim);
  partial_kernel<T><<<grid, kThreads, bytes, stream>>>(args, first_row);
}

}  // namespace

size_t latent_workspace_bytes(const LatentArgs& args) {
  return sizeof(float) * static_cast<size_t>(std::min(args.rows, kMostRows)) * args.heads *
         split_count(args.most_visible) * partial_floats(args.cache.latent_dim);
}

void latent_attention(cudaStream_t stream, const LatentArgs& args) {
  const int splits = split_count(args.most_visible);
  if (splits == 0) return;
  for (int64_t first = 0; first < args.rows; first += kMostRows) {
    const auto rows = static_cast<unsigned>(std::min(kMostRows, args.rows - first));
    const dim3 grid(static_cast<unsigned>(splits),
                    static_cast<unsigned>((args.heads + kHeads - 1) / kHeads), rows);
    if (args.cache.element == Element::kF32)
      launch_partial<float>(stream, args, first, grid);
    else if (args.cache.element == Element::kBF16)
      launch_partial<__nv_bfloat16>(stream, args, first, grid);
    else
      launch_partial<__nv_fp8_e4m3>(stream, args, first, grid);
    const dim3 merge_grid(static_cast<unsigned>(args.heads), rows);
    if (args.out_is_bf16)
      merge_kernel<__nv_bfloat16><<<merge_grid, kThreads, 0, stream>>>(args, first, splits);
    else
      merge_kernel<float><<<merge_grid, kThreads, 0, stream>>>(args, first, splits);
  }
}

}  // namespace foresail::cuda
