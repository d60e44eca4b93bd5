// The copying warps of the kernel for more than 64 rows: three for the keys, one for the queries.
#pragma once

#include "kernels/cuda/sm90/mla_many_rows_layout.cuh"
#include "kernels/cuda/sm90/mla_producers.cuh"

namespace foresail::cuda::mla {

// `parts` parts of the key tiles of all segments, from `first_part` on. The left tile of two always
// lies in stage 0.
__device__ __forceinline__ void produce_tile_parts(const KernelParams& p,
                                                   const CUtensorMap* page_map,
                                                   const CUtensorMap* small_map, uint32_t shared,
                                                   Walker walker, const EarlyPages<4>& early,
                                                   int first_part, int parts) {
  using L = ManyRowsLayout;
  const uint64_t policy = ptx::evict_first_policy();
  Segment segment;
  const int big_box_log2 = min(p.page_log2, kTileLog2);
  int fills[2] = {0, 0};
  while (walker.next(p, &segment)) {
    const int slot = table_slot(p, segment.request);
    int stage = 0;
    for (int key = segment.key_begin; key < segment.key_end; key += kTile, stage ^= 1) {
      const int fill = stage == 0 ? fills[0]++ : fills[1]++;
      const int count = min(kTile, segment.key_end - key);
      const bool big = count == kTile && (key & ((1 << big_box_log2) - 1)) == 0;
      const int box_log2 = box_log2_of(p, big_box_log2, big);
      const int boxes = kTile >> box_log2;
      const int row = find_boxes(p, early, table_row(p, slot), key, count, box_log2, 0);
      const CUtensorMap* map = one_of_maps(page_map, small_map, big);
#pragma unroll 1
      for (int part = first_part; part < first_part + parts; ++part) {
        const int chunk = L::first_chunk(part);
        const int chunks = L::chunks(part);
        const uint32_t full = shared + L::kFull + (stage * L::kParts + part) * 8;
        const uint32_t barrier = __shfl_sync(~0u, full, 0);
        ptx::mbarrier_wait(full + L::kEmpty - L::kFull, (fill & 1) ^ 1);
        if (ptx::elect_lane()) ptx::mbarrier_arrive_expect(barrier, chunks * kChunkBytes);
        __syncwarp();
#pragma unroll 1
        for (int b = 0; b < boxes; ++b) {
          const int box_row = __shfl_sync(~0u, __shfl_sync(~0u, row, b), 0);
          const uint32_t to = __shfl_sync(
              ~0u, shared + stage * kStageBytes + chunk * kChunkBytes + (b << box_log2) * 128, 0);
          const int column = __shfl_sync(~0u, chunk * 64, 0);
          const bool two = __shfl_sync(~0u, chunks, 0) == 2;
          if (ptx::elect_lane()) {
            ptx::tma_load_2d(to, map, column, box_row, barrier, policy);
            if (two) {
              ptx::tma_load_2d(to + kChunkBytes, map, column + 64, box_row, barrier, policy);
            }
          }
          __syncwarp();
        }
      }
    }
  }
}

// Queries and tasks of all segments, and a last task that says that there are no more.
__device__ __forceinline__ void produce_tasks(const KernelParams& p, const CUtensorMap* map,
                                              uint8_t* smem, uint32_t shared, Walker walker) {
  using L = ManyRowsLayout;
  const int lane = threadIdx.x & 31;
  auto* tasks = reinterpret_cast<ManyRowsTask*>(smem + L::kTasks);
  Segment segment;
  for (int i = 0;; ++i) {
    const bool more = walker.next(p, &segment);
    ptx::mbarrier_wait(shared + L::kQueryEmpty, (i & 1) ^ 1);
    ManyRowsTask* task = tasks + (i & 1);
    if (!more) {
      if (lane == 0) {
        task->tiles = -1;
        task->total = walker.total;
        task->blocks = walker.blocks;
      }
      ptx::mbarrier_arrive(shared + L::kQueryFull);
      return;
    }
    const RowRange rows(p, segment.request);
    int* hidden = reinterpret_cast<int*>(smem + L::kHidden) + (i & 1) * kWideRows;
    for (int row = lane; row < kWideRows; row += 32) hidden[row] = rows.hidden_keys(p, row);
    if (lane == 0) {
      const int keys = max(segment.key_end - segment.key_begin, 0);
      *task = {{(keys + kTile - 1) / kTile, segment.request, segment.first_unit, segment.units,
                walker.total, walker.blocks, segment.whole},
               segment.key_begin,
               segment.key_end,
               segment.key_len,
               rows.last_query};
    }
    // Every lane arrives, for what it wrote.
    if (lane != 0) ptx::mbarrier_arrive(shared + L::kQueryFull);
    if (lane == 0) {
      copy_queries<L, kWideRows>(shared + L::kQuery, map, rows.first, shared + L::kQueryFull);
    }
    __syncwarp();
  }
}

}  // namespace foresail::cuda::mla
