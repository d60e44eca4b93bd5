// The two copying warps of the MLA decode kernel: key tiles and query rows into shared memory.
#pragma once

#include "kernels/cuda/sm90/mla_walker.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mla {

// Brings page-table lines into L2 before anyone knows which of them will be read: the copies start
// with a chain of two reads, the lengths and then the table, and both may miss. Limited to the
// first lines of many long tables.
__device__ __forceinline__ void prefetch_tables(const KernelParams& p) {
  constexpr int kMostPerLane = 4;
  constexpr int kLineEntries = 128 / static_cast<int>(sizeof(int32_t));
  const int lines = (p.max_pages + kLineEntries - 1) / kLineEntries;
  const int stride = gridDim.x * 32;
  int at = (threadIdx.x & 31) * gridDim.x + blockIdx.x;
#pragma unroll 1
  for (int i = 0; i < kMostPerLane && at < lines * p.batch; ++i, at += stride) {
    const int request = at / lines;
    const int slot = p.slots != nullptr ? __ldg(p.slots + request) : request;
    ptx::prefetch_l2(p.block_table + static_cast<int64_t>(slot) * p.max_pages +
                     (at - request * lines) * kLineEntries);
  }
}

// One warp streams the key tiles of all segments. A full tile inside the pages moves as boxes of
// min(page, 64) rows; a tail moves as boxes of 16 rows, of which those past the end are aimed past
// the pool so that the copy engine fills zeros without reading memory.
template <int N>
__device__ __forceinline__ void produce_keys(const KernelParams& p, const CUtensorMap* page_map,
                                             const CUtensorMap* small_map, uint32_t shared) {
  using L = Layout<N>;
  const int lane = threadIdx.x & 31;
  const uint64_t policy = ptx::evict_first_policy();
  Walker walker(p, blockIdx.x, gridDim.x);
  Segment segment;
  const int big_box = min(1 << p.page_log2, kTile);
  int tile = 0;
  while (walker.next(p, &segment)) {
    const int real = p.row_blocks == 1 ? segment.request : segment.request / p.row_blocks;
    const int slot = p.slots != nullptr ? __ldg(p.slots + real) : real;
    const int32_t* table = p.block_table + static_cast<int64_t>(slot) * p.max_pages;
    for (int key = segment.key_begin; key < segment.key_end; key += kTile, ++tile) {
      const int stage = tile % kStages;
      const int count = min(kTile, segment.key_end - key);
      const bool big = count == kTile && key % big_box == 0;
      const int box = big ? big_box : kSmallBox;
      const int boxes = kTile / box;  // 1, 2 or 4
      // Lane b finds the pool row of box b.
      int row = p.pool_rows;
      if (lane < boxes && lane * box < count) {
        const int position = key + lane * box;
        row = (__ldg(table + (position >> p.page_log2)) << p.page_log2) +
              (position & ((1 << p.page_log2) - 1));
      }
      ptx::mbarrier_wait(shared + L::kEmpty + stage * 8, ((tile / kStages) & 1) ^ 1);
      const uint32_t full = shared + L::kFull + stage * kParts * 8;
      if (lane < kParts) {
        ptx::mbarrier_arrive_expect(full + lane * 8, kStageBytes / kParts);
      }
      __syncwarp();
      for (int b = 0; b < boxes; ++b) {
        const int box_row = __shfl_sync(~0u, row, b);
        if (lane < kChunks) {
          ptx::tma_load_2d(shared + stage * kStageBytes + lane * kChunkBytes + b * box * 128,
                           big ? page_map : small_map, lane * 64, box_row,
                           full + (lane / (kChunks / kParts)) * 8, policy);
        }
      }
    }
  }
}

// One warp brings the query rows of each segment, so that a wait for a free query buffer does not
// hold up the keys. skip_rows: of each request piece, rows that another block sees to. Rows past
// the request's own are other rows or zeros: their columns are unused.
template <typename L, int N>
__device__ __forceinline__ void produce_queries(const KernelParams& p, const CUtensorMap* map,
                                                uint32_t shared, Walker walker, int skip_rows) {
  const int lane = threadIdx.x & 31;
  Segment segment;
  for (int i = 0; walker.next(p, &segment); ++i) {
    const int stage = i % L::kQueryStages;
    const int row = RowRange(p, segment.request).first + skip_rows;
    ptx::mbarrier_wait(shared + L::kQueryEmpty + stage * 8, ((i / L::kQueryStages) & 1) ^ 1);
    const uint32_t full = shared + L::kQueryFull + stage * 8;
    if (lane == 0) ptx::mbarrier_arrive_expect(full, L::kQueryBytes);
    __syncwarp();
    if (lane < kChunks) {
      ptx::tma_load_2d(shared + L::kQuery + stage * L::kQueryBytes + lane * N * 128, map, lane * 64,
                       row, full);
    }
  }
}

}  // namespace foresail::cuda::mla
