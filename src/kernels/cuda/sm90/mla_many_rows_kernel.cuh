// The MLA decode kernel for more than 64 query rows (64 of them a block); mla_decode.cu launches
// it. Two warpgroups work on two tiles of keys, A and B, at once:
//   left   S_A = Q K_A^T, softmax;   O[64, dims 0-255]   += P_A V_A, then P_B V_B
//   right  S_B = Q K_B^T, softmax;   O[64, dims 256-511] += P_A V_A, then P_B V_B
// The right one asks for P_A V_A before its own softmax, so that this runs beside the product; the
// left one's softmax runs beside the right one's scores. Weights are exchanged as packed fragments:
// thread i of one warpgroup holds what thread i of the other needs.
#pragma once

#include "kernels/cuda/sm90/mla_many_rows_group.cuh"
#include "kernels/cuda/sm90/mla_many_rows_producers.cuh"

namespace foresail::cuda::mla {

__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_many_rows_kernel(const __grid_constant__ KernelParams params,
                                const __grid_constant__ CUtensorMap query_map,
                                const __grid_constant__ CUtensorMap page_map,
                                const __grid_constant__ CUtensorMap small_map) {
  using L = ManyRowsLayout;
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t shared = ptx::shared_address(smem);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  if (warp == 0 && lane == 0) {
    if ((shared & 1023) != 0) __trap();  // the swizzle is a function of the address
    ptx::prefetch_tensor_map(&page_map);
    ptx::prefetch_tensor_map(&small_map);
  }
  if (warp == 1 && lane == 0) {
    for (int i = 0; i < kStages * L::kParts; ++i) {
      ptx::mbarrier_init(shared + L::kFull + i * 8, 1);
      // Warps whose reading of a part is the last: those of one warpgroup.
      ptx::mbarrier_init(shared + L::kEmpty + i * 8, 4);
    }
    *reinterpret_cast<int*>(smem + L::kSharedCount) = 0;
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(shared + L::kWeightsFull + i * 8, 128);
      ptx::mbarrier_init(shared + L::kCleared + i * 8, 128);
    }
    ptx::prefetch_tensor_map(&query_map);
    ptx::mbarrier_init(shared + L::kQueryFull, 32);
    ptx::mbarrier_init(shared + L::kQueryEmpty, kConsumerThreads);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  ptx::wait_for_predecessor();
  const int first = first_kv_end(params, params.row_sets);
  EarlyPages<4> early;
  if (warp < 4) early.ask(params);
  __syncthreads();
  ptx::launch_dependents();
  if (warp < 4) {
    ptx::register_decrease<L::kCopyRegisters>();
    const Walker walker = ManyRowsShare(params).walker(params, first);
    if (warp == 3) {
      produce_tasks(params, &query_map, smem, shared, walker);
    } else {
      produce_tile_parts(params, &page_map, &small_map, shared, walker, early,
                         warp == 0 ? 0 : warp * 2 - 1, warp == 0 ? 1 : 2);
    }
  } else {
    ptx::register_increase<L::kComputeRegisters>();
    ManyRowsGroup group(params, smem, shared, 4);
    group.run();
  }
}

}  // namespace foresail::cuda::mla
