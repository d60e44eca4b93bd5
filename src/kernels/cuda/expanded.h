// Attention over up-projected keys and values of one request, for prefill (FlashAttention-2's order
// of work: Dao, 2023), with what stands before and after it. A row's bits depend on nothing but its
// query and its own keys. Stateless; records into `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/rows.h"

namespace foresail::cuda {

constexpr int kMostExpandedDim = 256;  // of a query, and of a value

// Keys [first_key, first_key + latent.rows) of the request whose pages `table` lists: the latent
// part into `latent`, the rest into `k_rope` (f32).
void gather_latent(cudaStream_t stream, const Cache& cache, const int32_t* table, int64_t first_key,
                   const Rows& latent, const Rows& k_rope);

struct ExpandedArgs {
  const float* q = nullptr;  // [rows, heads * (n + r)]
  int64_t q_stride = 0;
  int64_t rows = 0;
  int heads = 0;
  int nope_dim = 0, rope_dim = 0, value_dim = 0;  // n + r and v: at most kMostExpandedDim
  float softmax_scale = 1.0f;
  bool causal = false;            // row i sees the first key_count - rows + 1 + i keys
  const float* k_nope = nullptr;  // [keys, heads * n]
  const float* k_rope = nullptr;  // [keys, r]
  const float* value = nullptr;   // [keys, heads * v]
  int64_t key_count = 0;
  // Products of two bf16 terms of each number (16 bits of mantissa) in place of one.
  bool exact = false;
  float* out = nullptr;  // [rows, heads * v]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [rows, heads]
  int64_t lse_stride = 0;
};
void expanded_attention(cudaStream_t stream, const ExpandedArgs& args);

// (out, lse) <- merge of (out, lse) and (other, other_lse): f32, [rows, heads * v] and
// [rows, heads]; exact where either is empty.
void merge_attention(cudaStream_t stream, const Rows& other, const Rows& other_lse, const Rows& out,
                     const Rows& lse);

}  // namespace foresail::cuda
