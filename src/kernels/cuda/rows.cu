#include "kernels/cuda/rows.h"

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

namespace foresail::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks(int64_t rows) {
  return static_cast<unsigned>(rows);
}

// Calls body with a pointer of the type that the element names (kF32 or kBF16).
template <typename Body>
void with_type(Element element, Body&& body) {
  if (element == Element::kBF16)
    body(static_cast<__nv_bfloat16*>(nullptr));
  else
    body(static_cast<float*>(nullptr));
}

template <typename In, typename Out>
__global__ void copy_kernel(const In* in, int64_t in_stride, const int32_t* rows, float scale,
                            Out* out, int64_t out_stride, int64_t cols) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const int64_t source = rows != nullptr ? rows[t] : t;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads)
    store_value(out + t * out_stride, i, scale * load_value(in + source * in_stride, i));
}

// A thread four numbers, all that it has of them.
__global__ void __launch_bounds__(kThreads)
    round_kernel(const float* in, int64_t in_stride, __nv_bfloat16* out, int64_t out_stride,
                 int quads, int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const int64_t row = at / quads;
  const int col = static_cast<int>(at % quads) * 4;
  const float4 x = *reinterpret_cast<const float4*>(in + row * in_stride + col);
  const __nv_bfloat162 rounded[2] = {__floats2bfloat162_rn(x.x, x.y),
                                     __floats2bfloat162_rn(x.z, x.w)};
  *reinterpret_cast<uint2*>(out + row * out_stride + col) =
      *reinterpret_cast<const uint2*>(rounded);
}

// Whether every row begins where four numbers of this size may be read at once.
bool in_fours(const Rows& rows, uintptr_t number_bytes) {
  return rows.cols % 4 == 0 && rows.stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(rows.data) % (4 * number_bytes) == 0;
}

void copy(cudaStream_t stream, const Rows& in, const int32_t* rows, float scale, const Rows& out) {
  if (out.rows == 0 || out.cols == 0) return;
  if (in.element == Element::kF32 && out.element == Element::kBF16 && rows == nullptr &&
      scale == 1.0f && in.cols == out.cols && in_fours(in, 4) && in_fours(out, 2)) {
    const int64_t count = out.rows * out.cols / 4;
    return launch_early(stream, dim3(blocks((count + kThreads - 1) / kThreads)), kThreads, 0,
                        round_kernel, static_cast<const float*>(in.data), in.stride,
                        static_cast<__nv_bfloat16*>(out.data), out.stride,
                        static_cast<int>(out.cols / 4), count);
  }
  with_type(in.element, [&](auto* in_type) {
    with_type(out.element, [&](auto* out_type) {
      launch_early(stream, blocks(out.rows), kThreads, 0,
                   copy_kernel<std::remove_pointer_t<decltype(in_type)>,
                               std::remove_pointer_t<decltype(out_type)>>,
                   static_cast<decltype(in_type)>(in.data), in.stride, rows, scale,
                   static_cast<decltype(out_type)>(out.data), out.stride, out.cols);
    });
  });
}

template <typename In, typename Out>
__global__ void rms_norm_kernel(const In* x, int64_t x_stride, const float* weight, float eps,
                                Out* out, int64_t out_stride, int64_t cols) {
  __shared__ float scratch[kThreads / kWarp];
  let_next_start();
  wait_for_previous();
  const In* row = x + blockIdx.x * x_stride;
  // The first kKept numbers of a thread and their weights are loaded together and kept.
  constexpr int kKept = 8;
  float kept[kKept];
  float factors[kKept];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t at = threadIdx.x + i * kThreads;
    kept[i] = at < cols ? load_value(row, at) : 0.0f;
    factors[i] = at < cols ? weight[at] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) squares = __fmaf_rn(kept[i], kept[i], squares);
  for (int64_t i = threadIdx.x + kKept * kThreads; i < cols; i += kThreads) {
    const float value = load_value(row, i);
    squares = __fmaf_rn(value, value, squares);
  }
  const float total = block_sum<kThreads>(squares, scratch);
  const float factor = norm_factor(total, cols, eps);
  Out* to = out + blockIdx.x * out_stride;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t at = threadIdx.x + i * kThreads;
    if (at < cols) store_value(to, at, kept[i] * factor * factors[i]);
  }
  for (int64_t i = threadIdx.x + kKept * kThreads; i < cols; i += kThreads)
    store_value(to, i, load_value(row, i) * factor * weight[i]);
}

template <typename Out>
__global__ void silu_mul_kernel(const float* gate_up, int64_t stride, Out* out, int64_t out_stride,
                                int64_t cols) {
  let_next_start();
  const float* row = gate_up + blockIdx.x * stride;
  for (int64_t i = blockIdx.y * kThreads + threadIdx.x; i < cols; i += gridDim.y * kThreads) {
    store_value(out + blockIdx.x * out_stride, i, silu_times(row[i], row[cols + i]));
  }
}

// Block x: row; y: pairs of all heads, one a thread.
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(float* q, int64_t stride, int heads, int head_dim, Rope rope,
                  const int32_t* positions, const float* row_scale) {
  let_next_start();
  wait_for_previous();
  float* row = q + blockIdx.x * stride;
  const float scale = row_scale != nullptr ? row_scale[blockIdx.x] : 1.0f;
  const int plain = head_dim - rope.dim;
  const int first = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  const int step = static_cast<int>(gridDim.y) * kThreads;
  if (row_scale != nullptr)
    for (int i = first; i < heads * plain; i += step)
      row[i / plain * head_dim + i % plain] *= scale;
  const int pairs = rope.dim / 2;
  if (first >= heads * pairs) return;
  float* head = row + first / pairs * head_dim + plain;
  const Turn turn = turn_of(rope, positions[blockIdx.x], first % pairs);
  const float2 turned = turn.of(head[turn.first], head[turn.second]);
  head[turn.first] = scale * turned.x;
  head[turn.second] = scale * turned.y;
}

template <typename T>
__global__ void store_kernel(const float* kv, int64_t stride, const float* norm_weight, float eps,
                             Rope rope, const int32_t* positions, const int32_t* slots, T* cache,
                             int latent_dim, int rope_dim, float inverse_scale) {
  __shared__ float scratch[kSumWarps];
  let_next_start();
  wait_for_previous();
  const int64_t slot = slots[blockIdx.x];
  if (slot < 0) return;
  const float* row = kv + blockIdx.x * stride;
  T* to = cache + slot * (latent_dim + rope_dim);
  if (rope.cos == nullptr) {
    for (int i = threadIdx.x; i < latent_dim + rope_dim; i += kThreads)
      store_value(to, i, row[i] * inverse_scale);
    return;
  }
  store_latent_row<kThreads>(row, norm_weight, eps, rope, positions[blockIdx.x], to, latent_dim,
                             rope_dim, inverse_scale, scratch);
}

template <typename Out>
__global__ void head_columns_kernel(const float* q, int64_t q_stride, int64_t q_head, Out* out,
                                    int64_t out_stride, int64_t out_head, int64_t width) {
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    store_value(out + blockIdx.x * out_stride + blockIdx.y * out_head, i,
                q[blockIdx.x * q_stride + blockIdx.y * q_head + i]);
}

}  // namespace

void embed(cudaStream_t stream, const int32_t* ids, const Rows& table, float scale,
           const Rows& out) {
  copy(stream, table, ids, scale, out);
}

void convert(cudaStream_t stream, const Rows& in, const Rows& out) {
  copy(stream, in, nullptr, 1.0f, out);
}

void gather_rows(cudaStream_t stream, const Rows& in, const int32_t* rows, const Rows& out) {
  copy(stream, in, rows, 1.0f, out);
}

void rms_norm(cudaStream_t stream, const Rows& x, const float* weight, float eps, const Rows& out) {
  if (x.rows == 0) return;
  with_type(x.element, [&](auto* in_type) {
    with_type(out.element, [&](auto* out_type) {
      launch_early(stream, blocks(x.rows), kThreads, 0,
                   rms_norm_kernel<std::remove_pointer_t<decltype(in_type)>,
                                   std::remove_pointer_t<decltype(out_type)>>,
                   static_cast<decltype(in_type)>(x.data), x.stride, weight, eps,
                   static_cast<decltype(out_type)>(out.data), out.stride, x.cols);
    });
  });
}

void silu_mul(cudaStream_t stream, const Rows& gate_up, const Rows& out) {
  if (out.rows == 0) return;
  // A few rows are spread over several blocks each.
  const dim3 grid(blocks(out.rows),
                  static_cast<unsigned>((out.cols + 4 * kThreads - 1) / (4 * kThreads)));
  with_type(out.element, [&](auto* type) {
    silu_mul_kernel<<<grid, kThreads, 0, stream>>>(
        static_cast<const float*>(gate_up.data), gate_up.stride,
        static_cast<decltype(type)>(out.data), out.stride, out.cols);
  });
}

void rotate_query(cudaStream_t stream, const Rows& q, int head_count, const Rope& rope,
                  const int32_t* positions, const float* row_scale) {
  if (q.rows == 0) return;
  const int pairs = head_count * rope.dim / 2;
  const dim3 grid(blocks(q.rows),
                  static_cast<unsigned>(std::max((pairs + kThreads - 1) / kThreads, 1)));
  launch_early(stream, grid, kThreads, 0, rotate_kernel, static_cast<float*>(q.data), q.stride,
               head_count, static_cast<int>(q.cols / head_count), rope, positions, row_scale);
}

void store_latent(cudaStream_t stream, const Rows& kv, const float* norm_weight, float eps,
                  const Rope& rope, const int32_t* positions, const int32_t* slots,
                  const Cache& cache) {
  if (kv.rows == 0) return;
  const auto launch = [&](auto* type) {
    const float inverse = cache.element == Element::kF8E4M3 ? 1.0f / cache.scale : 1.0f;
    launch_early(stream, dim3(blocks(kv.rows)), kThreads, 0,
                 store_kernel<std::remove_pointer_t<decltype(type)>>,
                 static_cast<const float*>(kv.data), kv.stride, norm_weight, eps, rope, positions,
                 slots, static_cast<decltype(type)>(cache.data), cache.latent_dim, cache.rope_dim,
                 inverse);
  };
  if (cache.element == Element::kF8E4M3)
    launch(static_cast<__nv_fp8_e4m3*>(nullptr));
  else
    with_type(cache.element, launch);
}

void copy_head_columns(cudaStream_t stream, const Rows& q, int64_t from, const Rows& out,
                       int64_t to, int64_t width, int heads) {
  if (q.rows == 0) return;
  with_type(out.element, [&](auto* type) {
    head_columns_kernel<<<dim3(blocks(q.rows), static_cast<unsigned>(heads)), kWarp, 0, stream>>>(
        static_cast<const float*>(q.data) + from, q.stride, q.cols / heads,
        static_cast<decltype(type)>(out.data) + to, out.stride, out.cols / heads, width);
  });
}

}  // namespace foresail::cuda
