// Routed experts, and one that serves every row, for a few rows in three launches: choose(), a
// gated gemm() over the chosen experts, and mix(). To the bit what gemm, route, order_pairs,
// silu_mul and combine make one after the other. Stateless; pointers are device memory; records
// into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/moe.h"

namespace foresail::cuda {

constexpr int kFewExperts = 384;
constexpr int kFewPairs = 128;  // rows * top_k

// Pairs ordered by expert: row and weight of each, and the experts that they name.
struct ChosenPairs {
  int32_t* row = nullptr;       // [pairs]
  float* weight = nullptr;      // [pairs]
  ExpertTile* tiles = nullptr;  // [tile_limit], ascending; unused ones come last
  int32_t tile_limit = 0;       // min(pairs, experts)
  int64_t count = 0;            // of pairs
};

struct ChooseArgs {
  GemmArgs router;  // rows <= kFewRows; out f32 [rows, experts]
  GemmArgs shared;  // gated, of the same rows; n_out 0: no shared expert
  RouteArgs route;  // of the router's results; ids and weights are not written
  float* normed =
      nullptr;  // [rows, normed_stride] what the experts read, where the router norms rows
  int64_t normed_stride = 0;
  ExpertTables experts;
  ChosenPairs pairs;
  int32_t* arrived = nullptr;  // a zero; it is zero again afterwards
};
void choose(cudaStream_t stream, const ChooseArgs& args);

// out row += sum over its pairs of weight * (inner · downᵀ), in ascending expert id; then +=
// shared.
struct MixArgs {
  ChosenPairs pairs;
  const float* inner = nullptr;       // [pairs, inner_dim] in their order
  int64_t inner_dim = 0;              // a multiple of 4, like shared_dim
  const void* shared_down = nullptr;  // null: none
  const float* shared = nullptr;      // [rows, shared_dim]
  int64_t shared_dim = 0;
  float* out = nullptr;  // [rows, n_out]
  int64_t out_stride = 0;
  int64_t n_out = 0;
  int64_t rows = 0;
};
void mix(cudaStream_t stream, const MixArgs& args);

}  // namespace foresail::cuda
