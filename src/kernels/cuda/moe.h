// Routing, and the bookkeeping around grouped expert products.
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/rows.h"

namespace foresail::cuda {

constexpr int kMostExperts = 1024;
constexpr int kMostRoutedExperts = 384;  // where a launch chooses for many rows beside each other
constexpr int kMostChoices = 32;
constexpr int kMostGroups = 64;

enum class GroupRule : int { kNone, kMax, kTopTwoSum };

struct RouteArgs {
  const float* logits = nullptr;  // [rows, experts]
  int64_t stride = 0;
  int64_t rows = 0;
  bool sigmoid = false;
  GroupRule group_rule = GroupRule::kNone;
  int experts = 0;
  int top_k = 0;
  int groups = 1;
  int top_groups = 1;
  bool normalize = false;
  float scale = 1.0f;
  const float* bias = nullptr;
  int32_t* ids = nullptr;    // [rows, top_k]
  float* weights = nullptr;  // [rows, top_k]
};
void route(cudaStream_t stream, const RouteArgs& args);

// Tables of [experts] packed matrices, in device memory.
struct ExpertTables {
  const void* const* gate_up = nullptr;
  const void* const* down = nullptr;
};

// Orders the (row, choice) pairs by expert and cuts each expert's pairs into tiles.
struct PairLists {
  int32_t* pair_row = nullptr;    // [pairs] row of the pair at a place of the order
  int32_t* pair_place = nullptr;  // [pairs] place of pair row * top_k + choice
  ExpertTile* tiles = nullptr;    // [tile_limit], in ascending order; unused ones come last
  int32_t tile_limit = 0;         // tile_limit(...)
};
constexpr int64_t tile_limit(int64_t pairs, int64_t experts, int64_t tile_rows) {
  return (pairs < experts ? pairs : experts) + pairs / tile_rows;
}
void order_pairs(cudaStream_t stream, const int32_t* ids, int64_t pairs, int top_k, int tile_rows,
                 const ExpertTables& experts, const PairLists& lists);

// route() and order_pairs() in one launch, of up to kMostRoutedExperts. `arrivals`: a zero, which
// is zero again afterwards.
void route_and_order(cudaStream_t stream, const RouteArgs& args, int tile_rows,
                     const ExpertTables& experts, const PairLists& lists, int32_t* arrivals);

// out f32 row t += sum over its choices of weight * results[place], in ascending expert id; then,
// unless it is null, += row t of `shared` [rows, cols].
void combine(cudaStream_t stream, const float* results, const int32_t* pair_place,
             const int32_t* ids, const float* weights, int top_k, const float* shared,
             const Rows& out);

}  // namespace foresail::cuda
