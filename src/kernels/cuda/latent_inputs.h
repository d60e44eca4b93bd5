// What absorbed attention reads, for a few dozen rows, in one launch: rotated and absorbed queries
// and new rows of the cache. To the bit what rotate_query, store_latent, a gemm of heads and
// copy_head_columns make one after the other.
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include "kernels/cuda/rows.h"

namespace foresail::cuda {

struct LatentInputsArgs {
  const float* q = nullptr;  // [rows, heads * (nope_dim + rope.dim)]
  int64_t q_stride = 0;
  const float* kv = nullptr;  // [rows, latent_dim + rope.dim]
  int64_t kv_stride = 0;
  int64_t rows = 0;
  int heads = 0;
  int nope_dim = 0;
  const void* const* weights = nullptr;  // [heads] packed [latent_dim, nope_dim]
  Rope rope;
  const float* norm_weight = nullptr;
  float norm_eps = 0.0f;
  const int32_t* positions = nullptr;  // [rows]
  const int32_t* slots = nullptr;      // [rows]; negative: not written
  const float* row_scale = nullptr;    // [rows] or null
  Cache cache;
  void* out = nullptr;  // [rows, heads * (latent_dim + rope.dim)]
  bool out_is_bf16 = false;
  int64_t out_stride = 0;
  // For rotate_rows: the rest of the queries as the rows of a product of heads that is to come.
  SplitOut split_out;
};
// Whether the kernel is made for these.
bool fits_latent_inputs(const LatentInputsArgs& args);
void latent_inputs(cudaStream_t stream, const LatentInputsArgs& args);
// Of it what is no product, for any number of rows: the rotated part of the queries, and the cache.
void rotate_rows(cudaStream_t stream, const LatentInputsArgs& args);

}  // namespace foresail::cuda
