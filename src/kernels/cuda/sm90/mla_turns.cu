// bf16 cache, more than 64 rows.
#include "kernels/cuda/sm90/mla_launch.cuh"
#include "kernels/cuda/sm90/mla_turns_kernel.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_turns(const LaunchPlace& place, const CUtensorMap& query_map,
                             const CacheMaps& maps, const KernelParams& params) {
  return launch<mla_decode_turns_kernel, kThreads, TurnsLayout::kTotal>(place, params, query_map,
                                                                        maps.pages, maps.small);
}

}  // namespace foresail::cuda::mla
