// Routed experts, and one that serves every row, for one or two rows in one launch on Hopper. To
// the bit what rms_norm, gemm, route, order_pairs, silu_mul and combine make one after the other.
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
//
// Blocks wait for each other, so all must be able to run at once: the caller
// never runs two such calls at the same time on different streams.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/moe.h"

namespace foresail::cuda {

struct MixtureArgs {
  GemmArgs router;  // its rows, normed (norms_rows()), are the experts' too; `out` is not written
  RouteArgs route;  // of the router's results: rules only
  ExpertTables experts;
  float* inner = nullptr;  // [pairs, inner_dim] and behind it [rows, shared_dim]: works in it
  int64_t inner_dim = 0;
  const void* shared_gate_up = nullptr;  // null: no shared expert
  const void* shared_down = nullptr;
  int64_t shared_dim = 0;
  // out row += sum over its experts of weight * result, in ascending expert id; then += shared.
  float* out = nullptr;  // [rows, n_in of the router]
  int64_t out_stride = 0;
  int32_t* meeting = nullptr;  // kMeetingWords, aligned to 8 bytes, zero before the first call
};
constexpr int kMostMixedRows = 2;
constexpr int kMostMixedExperts = 384;
constexpr int kMeetingWords = 4 + 2 * kMostMixedRows * kMostMixedExperts;

bool fits_mixture(const MixtureArgs& args);
void mixture(cudaStream_t stream, const MixtureArgs& args);

}  // namespace foresail::cuda
