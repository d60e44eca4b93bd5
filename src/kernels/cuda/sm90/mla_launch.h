// The instances of the MLA decode kernels, as mla_decode.cu launches them: one file each.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/cuda/sm90/mla_decode.h"
#include "kernels/cuda/sm90/mla_layout.cuh"

namespace foresail::cuda::mla {

struct LaunchPlace {
  cudaStream_t stream;
  int blocks;
  MlaLaunch how;
};

struct CacheMaps {
  CUtensorMap pages;  // boxes of a page, or of as much of it as a tile takes
  CUtensorMap small;  // boxes of kSmallBox rows, for tails
};

// columns: 8, 16 or 32 rows that an instance holds; 64 too where the cache is e4m3.
MlaDecodeStatus launch_narrow(int columns, const LaunchPlace& place, const CUtensorMap& query_map,
                              const CacheMaps& maps, const KernelParams& params);
MlaDecodeStatus launch_codes(int columns, const LaunchPlace& place, const CacheMaps& maps,
                             const KernelParams& params);
MlaDecodeStatus launch_wide(const LaunchPlace& place, const CUtensorMap& query_map,
                            const CacheMaps& maps, const KernelParams& params);
MlaDecodeStatus launch_many_rows(const LaunchPlace& place, const CUtensorMap& query_map,
                                 const CacheMaps& maps, const KernelParams& params);

}  // namespace foresail::cuda::mla
