// Absorbed attention for every geometry and page size, on plain cores: the general form beside the
// tensor-core kernel of sm90/. Keys are cut at multiples of 128 from key 0 and merged in order, so
// a row's bits depend on nothing but its own keys. Stateless; records into `stream`; may be
// captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/rows.h"

namespace foresail::cuda {

constexpr int kMostLatentDim = 512;

struct LatentArgs {
  const float* q = nullptr;  // [rows, heads * (c + r)]
  int64_t q_stride = 0;
  int64_t rows = 0;
  int heads = 0;
  float softmax_scale = 1.0f;
  Cache cache;
  const int32_t* visible = nullptr;    // [rows] keys a row sees; 0: the row is left untouched
  const int32_t* table_row = nullptr;  // [rows]
  const int32_t* tables = nullptr;     // [.., table_width] pages
  int table_width = 0;
  int most_visible = 0;  // of any row
  void* out = nullptr;   // [rows, heads * c]
  bool out_is_bf16 = false;
  int64_t out_stride = 0;
  void* workspace = nullptr;  // latent_workspace_bytes(args)
};

size_t latent_workspace_bytes(const LatentArgs& args);
void latent_attention(cudaStream_t stream, const LatentArgs& args);

}  // namespace foresail::cuda
