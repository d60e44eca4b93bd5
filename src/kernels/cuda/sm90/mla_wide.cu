// bf16 cache, 33 to 64 rows.
#include "kernels/cuda/sm90/mla_launch.cuh"
#include "kernels/cuda/sm90/mla_wide_kernel.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_wide(const LaunchPlace& place, const CUtensorMap& query_map,
                            const CacheMaps& maps, const KernelParams& params) {
  return launch<mla_decode_wide_kernel, kWideThreads, WideLayout::kTotal>(
      place, PlainParams{params}, query_map, maps.pages, maps.small);
}

}  // namespace foresail::cuda::mla
