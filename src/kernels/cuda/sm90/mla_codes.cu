// e4m3 cache, up to 64 rows.
#include "kernels/cuda/sm90/mla_code_kernel.cuh"
#include "kernels/cuda/sm90/mla_launch.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_codes(int columns, const LaunchPlace& place, const CacheMaps& maps,
                             const KernelParams& params) {
  switch (columns) {
    case 8:
      return launch<mla_decode_code_kernel<8>, kThreads, CodeLayout<8>::kTotal>(place, maps.pages,
                                                                                maps.small, params);
    case 16:
      return launch<mla_decode_code_kernel<16>, kThreads, CodeLayout<16>::kTotal>(
          place, maps.pages, maps.small, params);
    case 32:
      return launch<mla_decode_code_kernel<32>, kThreads, CodeLayout<32>::kTotal>(
          place, maps.pages, maps.small, params);
    default:
      return launch<mla_decode_code_kernel<64>, kThreads, CodeLayout<64>::kTotal>(
          place, maps.pages, maps.small, params);
  }
}

}  // namespace foresail::cuda::mla
