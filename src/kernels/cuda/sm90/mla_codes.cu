// e4m3 cache, up to 64 rows.
#include "kernels/cuda/sm90/mla_code_kernel.cuh"
#include "kernels/cuda/sm90/mla_code_wide_kernel.cuh"
#include "kernels/cuda/sm90/mla_launch.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_codes(int columns, const LaunchPlace& place, const CacheMaps& maps,
                             const KernelParams& params) {
  const auto run = [&]<int N>() {
    constexpr int kBytes = CodeLayout<N>::kTotal;
    if (is_plain(params)) {
      return launch<mla_decode_code_kernel<N, PlainParams>, kThreads, kBytes>(
          place, PlainParams{params}, maps.pages, maps.small);
    }
    return merge_fixed<NarrowPieces<N>>(
        launch<mla_decode_code_kernel<N, KernelParams>, kThreads, kBytes>(place, params, maps.pages,
                                                                          maps.small),
        place, params);
  };
  if (columns == 8) return run.template operator()<8>();
  if (columns == 16) return run.template operator()<16>();
  if (columns == 32) return run.template operator()<32>();
  return launch<mla_decode_code_wide_kernel, kWideThreads, CodeWideLayout::kTotal>(
      place, params, maps.pages, maps.small);
}

}  // namespace foresail::cuda::mla
