// The router's product, the choice of experts and the order of the pairs in one launch, for a few
// dozen rows: to the bit what gemm(), route() and order_pairs() give one after the other.
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include "kernels/cuda/moe.h"

namespace foresail::cuda {

constexpr int64_t kMostRouterRows = 32;
constexpr int kRouterArrivals = kMostRouterRows / kFewRows + 1;

struct RouterArgs {
  GemmArgs product;  // out: the route's logits
  RouteArgs route;
  int tile_rows = 0;
  ExpertTables experts;
  PairLists lists;
  int32_t* arrivals = nullptr;  // [kRouterArrivals] zeros, which are zero again afterwards
};
bool fits_router(const RouterArgs& args);
void route_rows(cudaStream_t stream, const RouterArgs& args);

}  // namespace foresail::cuda
