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

// kWidth numbers of a row, aligned to as many.
template <int kWidth>
struct Numbers;
template <>
struct Numbers<4> {
  float4 x;
  __device__ __forceinline__ void add(float factor, const Numbers& other) {
    x.x = __fmaf_rn(factor, other.x.x, x.x);
    x.y = __fmaf_rn(factor, other.x.y, x.y);
    x.z = __fmaf_rn(factor, other.x.z, x.z);
    x.w = __fmaf_rn(factor, other.x.w, x.w);
  }
};
template <>
struct Numbers<1> {
  float x;
  __device__ __forceinline__ void add(float factor, const Numbers& other) {
    x = __fmaf_rn(factor, other.x, x);
  }
};

// Block x: row; y: columns, kWidth a thread.
template <int kWidth>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const float* results, const int32_t* pair_place, const int32_t* ids,
                   const float* weights, int top_k, const float* shared, float* out, int64_t stride,
                   int cols) {
  using Numbers = Numbers<kWidth>;
  constexpr int kTogether = 8;  // results on their way
  let_next_start();
  wait_for_previous();
  __shared__ const float* places[kMostChoices];  // in ascending order of experts
  __shared__ float factors[kMostChoices];
  const int64_t first = int64_t{blockIdx.x} * top_k;
  if (threadIdx.x < top_k) {
    int rank = 0;
    for (int i = 0; i < top_k; ++i)
      rank += ids[first + i] < ids[first + threadIdx.x] ||
              (ids[first + i] == ids[first + threadIdx.x] && i < threadIdx.x);
    places[rank] = results + int64_t{pair_place[first + threadIdx.x]} * cols;
    factors[rank] = weights[first + threadIdx.x];
  }
  __syncthreads();
  const int col =
      kWidth * (static_cast<int>(blockIdx.y) * kCombineThreads + static_cast<int>(threadIdx.x));
  if (col >= cols) return;
  auto* to = reinterpret_cast<Numbers*>(out + blockIdx.x * stride + col);
  Numbers value = *to;
  for (int begin = 0; begin < top_k; begin += kTogether) {
    Numbers x[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (begin + i < top_k) x[i] = *reinterpret_cast<const Numbers*>(places[begin + i] + col);
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (begin + i < top_k) value.add(factors[begin + i], x[i]);
  }
  // A product with one is exact, so this is the sum.
  if (shared != nullptr)
    value.add(1.0f, *reinterpret_cast<const Numbers*>(shared + int64_t{blockIdx.x} * cols + col));
  *to = value;
}

template <int kWidth>
void launch_combine(cudaStream_t stream, const float* results, const int32_t* pair_place,
                    const int32_t* ids, const float* weights, int top_k, const float* shared,
                    const Rows& out) {
  constexpr int64_t kCols = kWidth * kCombineThreads;
  const dim3 grid(static_cast<unsigned>(out.rows),
                  static_cast<unsigned>((out.cols + kCols - 1) / kCols));
  launch_early(stream, grid, kCombineThreads, 0, combine_kernel<kWidth>, results, pair_place, ids,
               weights, top_k, shared, static_cast<float*>(out.data), out.stride,
               static_cast<int>(out.cols));
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
  // Few rows are spread over more blocks.
  constexpr int64_t kFewRows = 64;
  const bool in_fours =
      out.rows > kFewRows && out.cols % 4 == 0 && out.stride % 4 == 0 &&
      (reinterpret_cast<uintptr_t>(out.data) | reinterpret_cast<uintptr_t>(results) |
       reinterpret_cast<uintptr_t>(shared)) %
              16 ==
          0;
  in_fours ? launch_combine<4>(stream, results, pair_place, ids, weights, top_k, shared, out)
           : launch_combine<1>(stream, results, pair_place, ids, weights, top_k, shared, out);
}

}  // namespace foresail::cuda
