// bf16 cache, more than 64 rows.
#include "kernels/cuda/sm90/mla_launch.cuh"
#include "kernels/cuda/sm90/mla_many_rows_kernel.cuh"

namespace foresail::cuda::mla {

MlaDecodeStatus launch_many_rows(const LaunchPlace& place, const CUtensorMap& query_map,
                                 const CacheMaps& maps, const KernelParams& params) {
  return launch<mla_decode_many_rows_kernel, kThreads, ManyRowsLayout::kTotal>(
      place, params, query_map, maps.pages, maps.small);
}

}  // namespace foresail::cuda::mla
