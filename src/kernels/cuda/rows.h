// Operations on rows: each row by itself, so its bits depend on nothing else.
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/gemm.h"

namespace foresail::cuda {

struct Rows {
  void* data = nullptr;
  Element element = Element::kF32;  // kF32 or kBF16
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements
};

struct Rope {
  const float* cos = nullptr;  // [positions, dim / 2]
  const float* sin = nullptr;
  int dim = 0;
  bool half_split = false;  // pairs (i, i + dim/2), otherwise (2i, 2i + 1)
};

struct Cache {
  void* data = nullptr;              // [slots, latent_dim + rope_dim]
  Element element = Element::kBF16;  // kF32, kBF16 or kF8E4M3
  int page_size = 0;
  int latent_dim = 0;
  int rope_dim = 0;
  float scale = 1.0f;  // kF8E4M3: a number is its code times this
};

// out row t = scale * table row ids[t]; the width is the output's.
void embed(cudaStream_t stream, const int32_t* ids, const Rows& table, float scale,
           const Rows& out);
void rms_norm(cudaStream_t stream, const Rows& x, const float* weight, float eps, const Rows& out);
// gate_up f32 [T, 2 * out.cols]
void silu_mul(cudaStream_t stream, const Rows& gate_up, const Rows& out);
void convert(cudaStream_t stream, const Rows& in, const Rows& out);
void gather_rows(cudaStream_t stream, const Rows& in, const int32_t* rows, const Rows& out);
// q f32; row_scale may be null.
void rotate_query(cudaStream_t stream, const Rows& q, int head_count, const Rope& rope,
                  const int32_t* positions, const float* row_scale);
// Rows f32 [T, latent + rope] into slots[t]; with a rope table the latent is normed and the rest
// rotated, without (cos == null) they are stored as they are.
void store_latent(cudaStream_t stream, const Rows& kv, const float* norm_weight, float eps,
                  const Rope& rope, const int32_t* positions, const int32_t* slots,
                  const Cache& cache);
// Columns [from, from + width) of each of `heads` equal parts of q (f32) to [to, to + width) of
// out's.
void copy_head_columns(cudaStream_t stream, const Rows& q, int64_t from, const Rows& out,
                       int64_t to, int64_t width, int heads);

}  // namespace foresail::cuda
