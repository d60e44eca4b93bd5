#include <cuda_runtime.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/route.cuh"

namespace foresail::cuda {
namespace {

// By one warp.
template <int kExperts>
__device__ __forceinline__ void choose_experts(const RouteArgs& args, int row,
                                               RouteSpace<kExperts>& space) {
  const float* logits = args.logits + row * args.stride;
  route_row(
      args, [&](int expert) { return __ldcg(logits + expert); }, space);
  for (int i = threadIdx.x % kWarp; i < args.top_k; i += kWarp) {
    args.ids[row * args.top_k + i] = space.best[i];
    args.weights[row * args.top_k + i] = space.weight[i];
  }
}

__global__ void __launch_bounds__(kWarp) route_kernel(RouteArgs args) {
  __shared__ RouteSpace<kMostExperts> space;
  let_next_start();
  wait_for_previous();
  choose_experts(args, static_cast<int>(blockIdx.x), space);
}

constexpr int kOrderThreads = kMostExperts;

// Sums of both numbers over the threads up to and including this one; `warps` holds 32 entries.
__device__ int2 scan(int2 value, int2* warps) {
  const auto within_warp = [](int2 sum) {
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int x = __shfl_up_sync(0xFFFFFFFFu, sum.x, offset);
      const int y = __shfl_up_sync(0xFFFFFFFFu, sum.y, offset);
      if (static_cast<int>(threadIdx.x % kWarp) >= offset) sum = make_int2(sum.x + x, sum.y + y);
    }
    return sum;
  };
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  value = within_warp(value);
  if (threadIdx.x % kWarp == kWarp - 1) warps[warp] = value;
  __syncthreads();
  if (warp == 0) warps[threadIdx.x] = within_warp(warps[threadIdx.x]);
  __syncthreads();
  if (warp == 0) return value;
  return make_int2(value.x + warps[warp - 1].x, value.y + warps[warp - 1].y);
}

// By kOrderThreads; ids may have been written by this block.
__device__ __forceinline__ void order(const int32_t* ids, int pairs, int top_k, int tile_rows,
                                      const ExpertTables& experts, const PairLists& lists) {
  static_assert(kOrderThreads == kWarp * kWarp);
  __shared__ int fill[kMostExperts];
  __shared__ int2 warps[kWarp];
  __shared__ int tile_count;
  const int e = threadIdx.x;
  fill[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kOrderThreads) atomicAdd(&fill[ids[i]], 1);
  __syncthreads();
  const int count = fill[e];
  const int tiles = (count + tile_rows - 1) / tile_rows;
  const int2 ends = scan(make_int2(count, tiles), warps);
  const int begin = ends.x - count;
  for (int t = 0; t < tiles; ++t)
    lists.tiles[ends.y - tiles + t] = {e, begin + t * tile_rows,
                                       min(tile_rows, count - t * tile_rows), experts.gate_up[e],
                                       experts.down[e]};
  fill[e] = begin;
  if (e == kMostExperts - 1) tile_count = ends.y;
  __syncthreads();
  for (int t = tile_count + e; t < lists.tile_limit; t += kOrderThreads) lists.tiles[t] = {};
  // The order inside an expert is arbitrary; no result depends on it.
  for (int i = threadIdx.x; i < pairs; i += kOrderThreads) {
    const int place = atomicAdd(&fill[ids[i]], 1);
    lists.pair_row[place] = i / top_k;
    lists.pair_place[i] = place;
  }
}

__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const int32_t* ids, int pairs, int top_k, int tile_rows, ExpertTables experts,
                 PairLists lists) {
  let_next_start();
  wait_for_previous();
  order(ids, pairs, top_k, tile_rows, experts, lists);
}

// A warp a row, and then all of them for all rows.
constexpr int kMostRoutedRows = kOrderThreads / kWarp;
constexpr int kMostRoutedExperts = 384;
__global__ void __launch_bounds__(kOrderThreads)
    route_and_order_kernel(RouteArgs args, int tile_rows, ExpertTables experts, PairLists lists) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* spaces = reinterpret_cast<RouteSpace<kMostRoutedExperts>*>(memory);
  let_next_start();
  wait_for_previous();
  const auto row = static_cast<int>(threadIdx.x) / kWarp;
  if (row < args.rows) choose_experts(args, row, spaces[row]);
  order(args.ids, static_cast<int>(args.rows) * args.top_k, args.top_k, tile_rows, experts, lists);
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
  launch_early(stream, dim3(1), kOrderThreads, 0, order_kernel, ids, static_cast<int>(pairs), top_k,
               tile_rows, experts, lists);
}

bool fits_route_and_order(const RouteArgs& args) {
  return args.rows <= kMostRoutedRows && args.experts <= kMostRoutedExperts;
}

void route_and_order(cudaStream_t stream, const RouteArgs& args, int tile_rows,
                     const ExpertTables& experts, const PairLists& lists) {
  const size_t bytes = static_cast<size_t>(args.rows) * sizeof(RouteSpace<kMostRoutedExperts>);
  launch_early(stream, dim3(1), kOrderThreads, bytes, route_and_order_kernel, args, tile_rows,
               experts, lists);
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
