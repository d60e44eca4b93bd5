// The MLA decode kernel; mla_decode.cu launches it. docs/mla-decode.md tells the design.
//
// One block per SM, 384 threads: two consumer warpgroups and one producer warpgroup. A tile is 64
// keys, the M of wgmma; two tiles of 72 KB are in flight (26 KB an SM would cover the latency of
// device memory at full rate).
#pragma once

#include "kernels/cuda/sm90/mla_consumer.cuh"
#include "kernels/cuda/sm90/mla_producers.cuh"

namespace foresail::cuda::mla {

template <int N, typename Params>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_kernel(const __grid_constant__ Params params,
                      const __grid_constant__ CUtensorMap query_map,
                      const __grid_constant__ CUtensorMap page_map,
                      const __grid_constant__ CUtensorMap small_map) {
  using L = Layout<N>;
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t shared = ptx::shared_address(smem);
  const int warp = threadIdx.x / 32;
  if (warp == 8 && (threadIdx.x & 31) == 0) {
    if ((shared & 1023) != 0) __trap();  // the swizzle is a function of the address
    ptx::prefetch_tensor_map(&page_map);
    ptx::prefetch_tensor_map(&small_map);
  }
  if (warp == 9 && (threadIdx.x & 31) == 0) {
    for (int i = 0; i < kStages * kParts; ++i) ptx::mbarrier_init(shared + L::kFull + i * 8, 1);
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(shared + L::kEmpty + i * 8, 8);
    ptx::mbarrier_init(shared + L::kTagPlace + offsetof(TagPlace, full), 1);
    ptx::prefetch_tensor_map(&query_map);
    for (int i = 0; i < L::kQueryStages; ++i) {
      ptx::mbarrier_init(shared + L::kQueryFull + i * 8, 1);
      ptx::mbarrier_init(shared + L::kQueryEmpty + i * 8, 8);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::wait_for_predecessor();
  const int first = first_kv_end(params);
  EarlyPages<L::kEarlyPages> early;
  if (warp == 8) early.ask(params);
  __syncthreads();
  ptx::launch_dependents();
  if (warp == 10) prefetch_tables(params);
  // Before the roles part: one copy of its instructions instead of four on their way to the SM.
  const Walker walker(params, blockIdx.x, first);
  if (warp >= 8) {
    ptx::register_decrease<L::kProducerRegisters>();
    if (warp == 8) {
      Walker rest = walker;
      int asked = 0;
      if constexpr (kPlain<Params>) {
        asked = ask_first_tile<L>(params, &page_map, shared, rest, early, first);
      }
      produce_keys<L>(params, &page_map, &small_map, shared, rest, early, asked);
    }
    if (warp == 9) {
      if constexpr (kPlain<Params>) {
        ask_first_queries<L, N>(params, &query_map, shared, walker);
      }
      produce_queries<L, N>(params, &query_map, shared, walker, kPlain<Params>);
    }
    if (warp == 11) {
      find_tag(params, reinterpret_cast<TagPlace*>(smem + L::kTagPlace),
               shared + L::kTagPlace + offsetof(TagPlace, full), walker);
    }
  } else {
    ptx::register_increase<L::kConsumerRegisters>();
    Consumer<N, Params> consumer{params,   smem,     shared,
                                 warp / 4, warp & 3, static_cast<int>(threadIdx.x & 31)};
    consumer.run(walker);
  }
}

}  // namespace foresail::cuda::mla
