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

template <typename Params>
__device__ __forceinline__ int table_slot(const Params& p, int request) {
  const int real = p.row_blocks == 1 ? request : divide(request, p.by_row_blocks);
  return p.slots != nullptr ? __ldg(p.slots + real) : real;
}

// Found anew wherever it is asked for: a slot is one register through a loop, a pointer two.
__device__ __forceinline__ const int32_t* table_row(const KernelParams& p, int slot) {
  asm volatile("" : "+r"(slot));
  return p.block_table + static_cast<int64_t>(slot) * p.max_pages;
}

// The first pages of a table row, read by the whole warp before anyone knows the lengths: otherwise
// the first copy waits for two reads, one after the other. Of the request that the block begins
// with if all are of one length. Some may lie past its length: nobody asks for those.
template <int kPerLane>
struct EarlyPages {
  // Else of a request alone: where registers are short, it must do without `row`.
  static constexpr bool kAnyBatch = kPerLane > 1;

  const int32_t* row;
  int request;
  int entry[kPerLane];  // page i * 32 + lane

  EarlyPages() = default;

  static __device__ __forceinline__ int count(const KernelParams& p) {
    return kAnyBatch || p.batch == 1 ? min(kPerLane * 32, p.max_pages) : 0;
  }

  template <typename Params>
  __device__ __forceinline__ void ask(const Params& p) {
    request = 0;
    if constexpr (kPlain<Params>) {
      request = likely_request(p, blockIdx.x);
    } else {
      if (kAnyBatch && p.batch > 1) request = small_quotient(blockIdx.x * p.batch, gridDim.x);
    }
    const int slot = p.slots != nullptr ? __ldg(p.slots + request) : request;
    row = p.block_table + static_cast<int64_t>(slot) * p.max_pages;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int at = i * 32 + static_cast<int>(threadIdx.x & 31);
      entry[i] = at < count(p) ? ptx::load_ahead(row + at) : 0;
    }
  }

  // Row of the pool where a key lies, or the first one past the pool. Called by the whole warp;
  // wanted: this lane's key exists.
  __device__ __forceinline__ int pool_row(const KernelParams& p, const int32_t* table, int key,
                                          bool wanted) const {
    const int page = key >> p.page_log2;
    int found = 0;
    if (__all_sync(~0u, !wanted || (page < count(p) && (!kAnyBatch || table == row)))) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int other = __shfl_sync(~0u, entry[i], page & 31);
        if (page / 32 == i) found = other;
      }
    } else if (wanted) {
      found = __ldg(table + page);
    }
    if (!wanted) return p.pool_rows;
    return (found << p.page_log2) + (key & ((1 << p.page_log2) - 1));
  }
};

// log2 of the keys a box of a tile that moves in full boxes (big), or of a tail.
__device__ __forceinline__ int box_log2_of(const KernelParams& p, int big_box_log2, bool big) {
  return big ? big_box_log2 : min(kSmallBoxLog2, p.page_log2);
}

// Lane i finds the pool row of box first + i of a tile of `count` keys from `key` on.
template <typename Early>
__device__ __forceinline__ int find_boxes(const KernelParams& p, const Early& early,
                                          const int32_t* table, int key, int count, int box_log2,
                                          int first) {
  const int at = (first + static_cast<int>(threadIdx.x & 31)) << box_log2;
  return early.pool_row(p, table, key + at, at < count);
}

// The map of full boxes or of small ones. Like all operands of copies it comes from lane 0: if the
// compiler cannot see that lanes agree, it issues the copies in a loop over the lanes.
__device__ __forceinline__ const CUtensorMap* one_of_maps(const CUtensorMap* full,
                                                          const CUtensorMap* small, bool big) {
  const auto* base = reinterpret_cast<const uint8_t*>(full);
  const int offset = static_cast<int>(reinterpret_cast<const uint8_t*>(small) - base);
  return reinterpret_cast<const CUtensorMap*>(base + __shfl_sync(~0u, big ? 0 : offset, 0));
}

// Of a map of chunks (mla_decode.cu): rows from `row` on of as many chunks as a box has, the first
// of them `chunk`, one behind the other.
__device__ __forceinline__ void copy_chunks(uint32_t destination, const CUtensorMap* map, int row,
                                            int chunk, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(0), "r"(row), "r"(chunk), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void copy_chunks(uint32_t destination, const CUtensorMap* map, int row,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(0), "r"(row), "r"(0), "r"(barrier)
      : "memory");
}

// Layouts whose maps are of chunks. (The last chunk of codes is half past a row's end, which such a
// map cannot say.)
template <typename L>
concept HasChunkMaps = requires {
  L::kChunksACopy;
};

// The chunks of a box of a tile, which lie a whole tile's rows apart: so boxes of fewer rows move
// chunk by chunk. Called by one lane.
template <typename L>
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, bool whole, int row,
                                         uint32_t full, uint64_t policy) {
  if constexpr (HasChunkMaps<L>) {
    if (whole) {
#pragma unroll
      for (int part = 0; part < L::kParts; ++part) {
        copy_chunks(to + part * L::kChunksACopy * kChunkBytes, map, row, part * L::kChunksACopy,
                    full + part * 8, policy);
      }
    } else {
#pragma unroll 1
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        copy_chunks(to + chunk * kChunkBytes, map, row, chunk, full + chunk / L::kChunksACopy * 8,
                    policy);
      }
    }
  } else {
#pragma unroll
    for (int chunk = 0; chunk < L::kTileChunks; ++chunk) {
      ptx::tma_load_2d(to + chunk * kChunkBytes, map, chunk * L::kChunkColumns, row,
                       full + chunk / (L::kTileChunks / L::kParts) * 8, policy);
    }
  }
}

// The first tile of a block, asked for on a short way: that of all tiles takes more than twice the
// instructions, and no other copy is under way that could hide them. Takes the tile off `walker`.
// first: first_kv_end. Returns tiles asked for: none if this one is not a whole page's part of the
// likely request.
template <typename L>
__device__ __forceinline__ int ask_first_tile(const PlainParams& p, const CUtensorMap* page_map,
                                              uint32_t shared, Walker& walker,
                                              const EarlyPages<L::kEarlyPages>& early, int first) {
  const int key = (walker.unit - walker.first_unit) << kTileLog2;
  const int page = key >> p.page_log2;
  int found = 0;
#pragma unroll
  for (int i = 0; i < L::kEarlyPages; ++i) {
    const int other = __shfl_sync(~0u, early.entry[i], page & 31);
    if (page / 32 == i) found = other;
  }
  const int length = visible_keys(__shfl_sync(~0u, first, walker.request & 31), p.kv_end_add);
  const bool simple = p.unit_log2 == kTileLog2 && p.page_log2 >= kTileLog2 && walker.request < 32 &&
                      walker.request == early.request && walker.unit < walker.unit_end &&
                      key + kTile <= length;
  if (!__all_sync(~0u, simple)) return 0;
  if (page >= L::kEarlyPages * 32) found = __ldg(early.row + page);
  const int row = __shfl_sync(~0u, (found << p.page_log2) + (key & ((1 << p.page_log2) - 1)), 0);
  if (ptx::elect_lane()) {
#pragma unroll
    for (int part = 0; part < L::kParts; ++part) {
      ptx::mbarrier_arrive_expect(shared + L::kFull + part * 8, L::kStageBytes / L::kParts);
    }
    copy_box<L>(shared, page_map, true, row, shared + L::kFull, ptx::evict_first_policy());
  }
  __syncwarp();
  ++walker.unit;
  if (key + kTile >= length) {
    walker.first_unit = walker.unit;
    ++walker.request;
  }
  return 1;
}

// One warp streams the key tiles of all segments, but for those that `walker` has left behind. A
// full tile inside the pages moves as boxes of min(page, 64) rows; a tail moves as boxes of
// min(page, 16) rows, of which those past the end are aimed past the pool so that the copy engine
// fills zeros without reading memory.
template <typename L, typename Params>
__device__ __forceinline__ void produce_keys(const Params& p, const CUtensorMap* page_map,
                                             const CUtensorMap* small_map, uint32_t shared,
                                             Walker walker, const EarlyPages<L::kEarlyPages>& early,
                                             int asked = 0) {
  Segment segment;
  const int big_box_log2 = min(p.page_log2, kTileLog2);
  int tile = asked;
  while (walker.next(p, &segment)) {
    const int slot = table_slot(p, segment.request);
    for (int key = segment.key_begin; key < segment.key_end; key += kTile, ++tile) {
      const int stage = tile % L::kStages;
      const int count = min(kTile, segment.key_end - key);
      const bool big = count == kTile && (key & ((1 << big_box_log2) - 1)) == 0;
      const int box_log2 = box_log2_of(p, big_box_log2, big);
      const int boxes = kTile >> box_log2;
      const uint32_t full = shared + L::kFull + stage * L::kParts * 8;
#pragma unroll 1
      for (int first = 0; first < boxes; first += 32) {
        const int row = find_boxes(p, early, table_row(p, slot), key, count, box_log2, first);
        ptx::mbarrier_wait(shared + L::kEmpty + stage * 8, ((tile / L::kStages) & 1) ^ 1);
        if (first == 0 && ptx::elect_lane()) {
#pragma unroll
          for (int part = 0; part < L::kParts; ++part) {
            ptx::mbarrier_arrive_expect(full + part * 8, L::kStageBytes / L::kParts);
          }
        }
        __syncwarp();
        const CUtensorMap* map = one_of_maps(page_map, small_map, big);
        const uint32_t barrier = __shfl_sync(~0u, full, 0);
        const uint64_t policy = ptx::evict_first_policy();
#pragma unroll 1
        for (int b = first; b < min(boxes, first + 32); ++b) {
          const int box_row = __shfl_sync(~0u, __shfl_sync(~0u, row, b & 31), 0);
          const uint32_t to =
              __shfl_sync(~0u, shared + stage * L::kStageBytes + (b << box_log2) * 128, 0);
          if (ptx::elect_lane()) {
            copy_box<L>(to, map, box_log2 == kTileLog2, box_row, barrier, policy);
          }
        }
      }
    }
  }
}

// Called by one lane.
template <typename L, int N>
__device__ __forceinline__ void copy_queries(uint32_t to, const CUtensorMap* map, int first_row,
                                             uint32_t full) {
  ptx::mbarrier_arrive_expect(full, L::kQueryBytes);
  if constexpr (HasChunkMaps<L>) {
    copy_chunks(to, map, first_row, full);
  } else {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      ptx::tma_load_2d(to + chunk * N * 128, map, chunk * 64, first_row, full);
    }
  }
}

// The query rows of the first segment, on a short way as the first tile.
template <typename L, int N>
__device__ __forceinline__ void ask_first_queries(const PlainParams& p, const CUtensorMap* map,
                                                  uint32_t shared, const Walker& walker) {
  const int row = __shfl_sync(~0u, walker.request * p.rows, 0);
  if (walker.unit < walker.unit_end && ptx::elect_lane()) {
    copy_queries<L, N>(shared + L::kQuery, map, row, shared + L::kQueryFull);
  }
  __syncwarp();
}

// One warp brings the query rows of each segment, so that a wait for a free query buffer does not
// hold up the keys. Rows past the request's own are other rows or zeros: their columns are unused.
template <typename L, int N, typename Params>
__device__ __forceinline__ void produce_queries(const Params& p, const CUtensorMap* map,
                                                uint32_t shared, Walker walker,
                                                bool first_asked = false) {
  Segment segment;
  for (int i = 0; walker.next(p, &segment); ++i) {
    if (i == 0 && first_asked) continue;
    const int stage = i % L::kQueryStages;
    const int row = RowRange(p, segment.request).first;
    ptx::mbarrier_wait(shared + L::kQueryEmpty + stage * 8, ((i / L::kQueryStages) & 1) ^ 1);
    const uint32_t full = shared + L::kQueryFull + stage * 8;
    const uint32_t to = __shfl_sync(~0u, shared + L::kQuery + stage * L::kQueryBytes, 0);
    const uint32_t barrier = __shfl_sync(~0u, full, 0);
    const int first_row = __shfl_sync(~0u, row, 0);
    if (ptx::elect_lane()) copy_queries<L, N>(to, map, first_row, barrier);
    __syncwarp();
  }
}

}  // namespace foresail::cuda::mla
