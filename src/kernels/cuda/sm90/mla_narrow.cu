// bf16 cache, up to 32 rows.
#include "kernels/cuda/sm90/mla_decode_kernel.cuh"
#include "kernels/cuda/sm90/mla_launch.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_narrow(int columns, const LaunchPlace& place, const CUtensorMap& query_map,
                              const CacheMaps& maps, const KernelParams& params) {
  switch (columns) {
    case 8:
      return launch<mla_decode_kernel<8>, kThreads, Layout<8>::kTotal>(place, query_map, maps.pages,
                                                                       maps.small, params);
    case 16:
      return launch<mla_decode_kernel<16>, kThreads, Layout<16>::kTotal>(
          place, query_map, maps.pages, maps.small, params);
    default:
      return launch<mla_decode_kernel<32>, kThreads, Layout<32>::kTotal>(
          place, query_map, maps.pages, maps.small, params);
  }
}

}  // namespace foresail::cuda::mla
