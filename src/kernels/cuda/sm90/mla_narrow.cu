// bf16 cache, up to 32 rows.
#include "kernels/cuda/sm90/mla_decode_kernel.cuh"
#include "kernels/cuda/sm90/mla_launch.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_narrow(int columns, const LaunchPlace& place, const CUtensorMap& query_map,
                              const CacheMaps& maps, const KernelParams& params) {
  const auto run = [&]<int N>() {
    return merge_fixed<NarrowPieces<N, false>>(
        launch<mla_decode_kernel<N>, kThreads, Layout<N>::kTotal>(place, params, query_map,
                                                                  maps.pages, maps.small),
        place, params);
  };
  if (columns == 8) return run.template operator()<8>();
  if (columns == 16) return run.template operator()<16>();
  return run.template operator()<32>();
}

}  // namespace foresail::cuda::mla
