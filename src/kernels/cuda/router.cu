#include "kernels/cuda/router.h"

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/order.cuh"
#include "kernels/cuda/product.cuh"

namespace foresail::cuda {
namespace {

// Block x: 16 experts; y: eight rows. The last block of eight rows chooses for them, a warp each;
// the last of those orders all pairs.
__global__ void __launch_bounds__(kProductThreads)
    router_kernel(const __grid_constant__ RouterArgs args) {
  static_assert(kProductThreads / kWarp == kFewRows);
  __shared__ RouteSpace<kMostRoutedExperts> spaces[kFewRows];
  let_next_start();
  Part part;
  find_part(args.product, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), 0, kFewRows,
            part);
  stream_product<1, false, true, false, Tiles::kOne>(args.product, part, nullptr);
  if (!arrives_last(args.arrivals + blockIdx.y, static_cast<int>(gridDim.x))) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp < part.row_count) choose_experts(args.route, part.row_begin + warp, spaces[warp]);
  if (!arrives_last(args.arrivals + gridDim.y, static_cast<int>(gridDim.y))) return;
  order_pairs_by<kProductThreads>(args.route.ids,
                                  static_cast<int>(args.route.rows) * args.route.top_k,
                                  args.route.top_k, args.tile_rows, args.experts, args.lists);
}

}  // namespace

bool fits_router(const RouterArgs& args) {
  return args.product.rows <= kMostRouterRows && !args.product.x_is_bf16 &&
         has_vector_rows(args.product) && args.route.experts <= kMostRoutedExperts;
}

void route_rows(cudaStream_t stream, const RouterArgs& args) {
  const dim3 grid(static_cast<unsigned>(tile_count(args.product.n_out)),
                  static_cast<unsigned>((args.product.rows + kFewRows - 1) / kFewRows));
  launch_early(stream, grid, kProductThreads, 0, router_kernel, args);
}

}  // namespace foresail::cuda
