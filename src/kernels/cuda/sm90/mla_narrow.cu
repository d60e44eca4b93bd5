// bf16 cache, up to 32 rows.
#include "kernels/cuda/sm90/mla_decode_kernel.cuh"
#include "kernels/cuda/sm90/mla_launch.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_narrow(int columns, const LaunchPlace& place, const CUtensorMap& query_map,
                              const CacheMaps& maps, const KernelParams& params) {
  const auto run = [&]<int N>() {
    constexpr int kBytes = Layout<N>::kTotal;
    if (is_plain(params)) {
      return launch<mla_decode_kernel<N, PlainParams>, kThreads, kBytes>(
          place, PlainParams{params}, query_map, maps.pages, maps.small);
    }
    return merge_fixed<RowPieces<N>>(launch<mla_decode_kernel<N, KernelParams>, kThreads, kBytes>(
                                         place, params, query_map, maps.pages, maps.small),
                                     place, params);
  };
  if (columns == 8) return run.template operator()<8>();
  if (columns == 16) return run.template operator()<16>();
  return run.template operator()<32>();
}

}  // namespace foresail::cuda::mla
