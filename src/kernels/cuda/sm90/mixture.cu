// Every block norms the rows and takes its part of all products, in this order: a few ask the
// router; gate and up of the shared expert; of the chosen ones; down of all. Two warps beside those
// of the products choose the experts meanwhile. Weights come through a ring in shared memory whose
// copies run ahead of everything that they do not depend on: the end of the kernel before (the
// router's and the shared expert's), the meeting of all blocks between gate and up and down.
#include "kernels/cuda/sm90/mixture.h"

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/mixer.cuh"

namespace foresail::cuda {
namespace {

using namespace mixing;

__global__ void __launch_bounds__(kMixtureThreads, 2)
    mixture_kernel(const __grid_constant__ MixtureArgs args, const __grid_constant__ Layout at) {
  extern __shared__ __align__(128) std::byte space[];
  let_next_start();
  Mixer mixer(args, at, space);
  if (threadIdx.x < kProductThreads)
    mixer.run();
  else
    mixer.choose();
}

}  // namespace

bool fits_mixture(const MixtureArgs& args) {
  constexpr int kMostBytes = 227 << 10;  // of a block
  const auto fits = [](int64_t n_in) {
    return n_in % kTileInputs == 0 && n_in >= kSegments * kTileInputs;
  };
  const int64_t blocks = processor_count();
  const int64_t pairs = args.router.rows * args.route.top_k;
  const int64_t own = (tile_count(args.router.n_in) + blocks - 1) / blocks;
  const auto dealt = [&](int64_t count) { return (count + blocks - 1) / blocks; };
  const int64_t tasks = 1 + dealt(tile_count(args.shared_dim)) + own +
                        dealt(pairs * tile_count(args.inner_dim)) + own * pairs;
  return args.router.rows <= kMostMixedRows && args.router.norm_weight != nullptr &&
         reinterpret_cast<uintptr_t>(args.router.norm_weight) % 16 == 0 && pairs <= kMostPairs &&
         args.route.experts <= kMostMixedExperts && own <= kMostOwnTiles && tasks <= kMostTasks &&
         fits(args.router.n_in) && fits(args.inner_dim) &&
         (args.shared_gate_up == nullptr || fits(args.shared_dim)) &&
         tile_count(args.router.n_out) <= blocks && layout_of(args).bytes <= kMostBytes;
}

void mixture(cudaStream_t stream, const MixtureArgs& args) {
  const Layout at = layout_of(args);
  // One block on every multiprocessor: all run at once.
  launch_early(stream, dim3(static_cast<unsigned>(processor_count())), kMixtureThreads,
               static_cast<size_t>(at.bytes), mixture_kernel, args, at);
}

}  // namespace foresail::cuda
