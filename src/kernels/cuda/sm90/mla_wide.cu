// bf16 cache, more than 32 rows.
#include "kernels/cuda/sm90/mla_launch.cuh"
#include "kernels/cuda/sm90/mla_wide_kernel.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_wide(bool paired, const LaunchPlace& place, const CUtensorMap& query_map,
                            const CacheMaps& maps, const KernelParams& params) {
  if (paired) {
    return launch<mla_decode_wide_kernel<true>, kWideThreads, WideLayout::kTotal, 2>(
        place, params, query_map, maps.pages, maps.small);
  }
  return launch<mla_decode_wide_kernel<false>, kWideThreads, WideLayout::kTotal>(
      place, PlainParams{params}, query_map, maps.pages, maps.small);
}

}  // namespace foresail::cuda::mla
