#include "kernels/cuda/sm90/chosen_rows.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/order.cuh"
#include "kernels/cuda/sm90/ptx.h"
#include "kernels/cuda/sm90/split_rows.cuh"

namespace foresail::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;  // a row each

enum Word : int { kArrivals, kOrdered, kGone };
static_assert(kChosenRowsWords == kGone + 1);

int choosing_blocks(const RouteArgs& route) {
  return static_cast<int>((route.rows + kWarps - 1) / kWarps);
}

// By all threads: until the pairs are ordered; the last block to have seen that leaves zeros.
__device__ __forceinline__ void await_order(int32_t* words) {
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(words + kOrdered) == 0) {
    }
    if (atomicAdd(words + kGone, 1) == static_cast<int>(gridDim.x) - 1) {
      words[kOrdered] = 0;
      words[kGone] = 0;
    }
  }
  __syncthreads();
}

// The first blocks choose, 16 rows each, the last of them to be done orders all pairs; then every
// block takes its share of the rows.
template <bool kBF16>
__global__ void __launch_bounds__(kThreads)
    chosen_rows_kernel(const __grid_constant__ ChosenRowsArgs args, int choosing, int chunks) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* spaces = reinterpret_cast<RouteSpace<kMostRoutedExperts>*>(memory);
  let_next_start();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const RouteArgs& route = args.route;
  const GemmArgs& product = args.product;
  if (static_cast<int>(blockIdx.x) < choosing) {
    const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
    if (row < route.rows) choose_experts(route, row, spaces[warp]);
    if (arrives_last(args.words + kArrivals, choosing)) {
      order_pairs_by<kThreads>(route.ids, static_cast<int>(route.rows) * route.top_k, route.top_k,
                               product.tile_rows, args.experts, args.lists);
      __syncthreads();
      if (threadIdx.x == 0) ptx::add_release(args.words + kOrdered, 1);
    }
  }
  await_order(args.words);
  // A warp kSplitTogether chunks of eight rows. The blocks' shares of a tile are next to each
  // other.
  constexpr int kTogether = kSplitTogether<kBF16>;
  const int groups = product.tile_rows / kGroupRows;
  const int parts = (chunks + kTogether - 1) / kTogether;
  const int64_t all = int64_t{args.lists.tile_limit} * groups * parts;
  const int64_t step = int64_t{gridDim.x} * kWarps;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + warp; i < all; i += step) {
    const auto chunk = static_cast<int>(i % parts) * kTogether;
    const auto group = static_cast<int>(i / parts) % groups;
    const auto tile = static_cast<int>(i / parts / groups);
    Part part;
    if (!find_part(product, 0, tile, 0, product.tile_rows, part)) return;  // none behind it
    if (group * kGroupRows < part.row_count)
      split_chunks<kBF16, kTogether>(product, part, tile, group, chunk, product.tile_rows, chunks,
                                     static_cast<uint4*>(args.scratch));
  }
}

}  // namespace

bool fits_chosen_rows(const RouteArgs& route) {
  return route.experts <= kMostRoutedExperts && choosing_blocks(route) <= processor_count();
}

void choose_and_split(cudaStream_t stream, const ChosenRowsArgs& args) {
  const int choosing = choosing_blocks(args.route);
  const size_t bytes = std::min<size_t>(static_cast<size_t>(args.route.rows), kWarps) *
                       sizeof(RouteSpace<kMostRoutedExperts>);
  launch_early(stream, dim3(static_cast<unsigned>(processor_count())), kThreads, bytes,
               args.product.x_is_bf16 ? chosen_rows_kernel<true> : chosen_rows_kernel<false>, args,
               choosing, static_cast<int>(chunk_count(args.product)));
}

}  // namespace foresail::cuda
