#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/order.cuh"

namespace foresail::cuda {
namespace {

__global__ void __launch_bounds__(kWarp) route_kernel(RouteArgs args) {
  __shared__ RouteSpace<kMostExperts> space;
  let_next_start();
  wait_for_previous();
  choose_experts(args, static_cast<int>(blockIdx.x), space);
}

__global__ void __launch_bounds__(kMostExperts)
    order_kernel(const int32_t* ids, int pairs, int top_k, int tile_rows, ExpertTables experts,
                 PairLists lists) {
  let_next_start();
  wait_for_previous();
  order_pairs_by<kMostExperts>(ids, pairs, top_k, tile_rows, experts, lists);
}

// Block x: as many rows as warps; the last block to be done with them orders all pairs.
constexpr int kRouteThreads = 512;
__global__ void __launch_bounds__(kRouteThreads)
    route_and_order_kernel(RouteArgs args, int tile_rows, ExpertTables experts, PairLists lists,
                           int32_t* arrivals) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* spaces = reinterpret_cast<RouteSpace<kMostRoutedExperts>*>(memory);
  let_next_start();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row = static_cast<int>(blockIdx.x) * (kRouteThreads / kWarp) + warp;
  if (row < args.rows) choose_experts(args, row, spaces[warp]);
  if (arrives_last(arrivals, static_cast<int>(gridDim.x)))
    order_pairs_by<kRouteThreads>(args.ids, static_cast<int>(args.rows) * args.top_k, args.top_k,
                                  tile_rows, experts, lists);
}

constexpr int kCombineThreads = 256;

// Block x: row; y: columns.
__global__ void combine_kernel(const float* results, const int32_t* pair_place, const int32_t* ids,
                               const float* weights, int top_k, const float* shared, float* out,
                               int64_t stride, int cols) {
  let_next_start();
  wait_for_previous();
  __shared__ int order[kMostChoices];
  const int64_t first = int64_t{blockIdx.x} * top_k;
  if (threadIdx.x < top_k) {
    int rank = 0;
    for (int i = 0; i < top_k; ++i)
      rank += ids[first + i] < ids[first + threadIdx.x] ||
              (ids[first + i] == ids[first + threadIdx.x] && i < threadIdx.x);
    order[rank] = threadIdx.x;
  }
  __syncthreads();
  const int col = static_cast<int>(blockIdx.y) * kCombineThreads + static_cast<int>(threadIdx.x);
  if (col >= cols) return;
  float* to = out + blockIdx.x * stride + col;
  float value = *to;
  for (int i = 0; i < top_k; ++i) {
    const int64_t pair = first + order[i];
    value = __fmaf_rn(weights[pair], results[int64_t{pair_place[pair]} * cols + col], value);
  }
  if (shared != nullptr) value = __fadd_rn(value, shared[int64_t{blockIdx.x} * cols + col]);
  *to = value;
}

}  // namespace

void route(cudaStream_t stream, const RouteArgs& args) {
  if (args.rows == 0) return;
  launch_early(stream, dim3(static_cast<unsigned>(args.rows)), kWarp, 0, route_kernel, args);
}

void order_pairs(cudaStream_t stream, const int32_t* ids, int64_t pairs, int top_k, int tile_rows,
                 const ExpertTables& experts, const PairLists& lists) {
  launch_early(stream, dim3(1), kMostExperts, 0, order_kernel, ids, static_cast<int>(pairs), top_k,
               tile_rows, experts, lists);
}

void route_and_order(cudaStream_t stream, const RouteArgs& args, int tile_rows,
                     const ExpertTables& experts, const PairLists& lists, int32_t* arrivals) {
  constexpr int64_t kRows = kRouteThreads / kWarp;
  const size_t bytes =
      static_cast<size_t>(std::min(args.rows, kRows)) * sizeof(RouteSpace<kMostRoutedExperts>);
  launch_early(stream, dim3(static_cast<unsigned>((args.rows + kRows - 1) / kRows)), kRouteThreads,
               bytes, route_and_order_kernel, args, tile_rows, experts, lists, arrivals);
}

void combine(cudaStream_t stream, const float* results, const int32_t* pair_place,
             const int32_t* ids, const float* weights, int top_k, const float* shared,
             const Rows& out) {
  if (out.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(out.rows),
                  static_cast<unsigned>((out.cols + kCombineThreads - 1) / kCombineThreads));
  launch_early(stream, grid, kCombineThreads, 0, combine_kernel, results, pair_place, ids, weights,
               top_k, shared, static_cast<float*>(out.data), out.stride,
               static_cast<int>(out.cols));
}

}  // namespace foresail::cuda
