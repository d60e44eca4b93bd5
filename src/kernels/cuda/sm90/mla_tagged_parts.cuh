// Parts of shared requests that say themselves whether they have arrived. A part is made of units
// of 16 bytes: four values of a row, the logarithm of the row's sum of weights, and the number of
// the call that wrote it, its tag. A unit moves as a whole, so a writer needs no fence and a reader
// no counter: whoever reads the call's tag has the values. Nothing is cleared between calls: units
// of earlier ones bear other tags. (Numbers repeat after 2^32 - 1 calls: a unit that nobody wrote
// in between would be taken for a new one, if it was read before the new one came.)
//
// In the memory of these parts nothing but tags ever lies where tags lie, or values of another
// kernel might be taken for one. So it is the kernels' alone that have them, and of one layout.
#pragma once

#include "kernels/cuda/sm90/mla_merge.cuh"

namespace foresail::cuda::mla {

// By a warp that has nothing else to do: finds the tag of this call and the shared requests of this
// block for the computing threads, and counts the blocks that have read the tag. The last of them
// moves the number on for the next call of the workspace, which begins when this one has ended.
template <typename Params>
__device__ __forceinline__ void find_tag(const Params& p, TagPlace* place, uint32_t full,
                                         Walker walker) {
  const bool speaker = (threadIdx.x & 31) == 0;
  const uint32_t calls = ptx::load_relaxed(p.calls);
  int count = 0;
  if (p.fixed_splits_log2 < 0) {
    Segment segment;
    while (walker.next(p, &segment)) {
      if (segment.whole) continue;
      const SplitGroup group =
          split_group(segment.first_unit, segment.units, walker.total, walker.blocks);
      const RowRange rows(p, segment.request);
      if (speaker) {
        place->tasks[count] = {rows.first, rows.count, group.first_block, group.block_count};
      }
      ++count;
    }
  }
  if (!speaker) return;
  place->task_count = count;
  place->tag = calls + 1;
  ptx::mbarrier_arrive(full);
  if (ptx::add_acquire_release(p.calls + 1, 1) != gridDim.x - 1) return;
  p.calls[1] = 0;
  p.calls[0] = calls + 2 == 0 ? 0 : calls + 1;  // 0 is the tag of units never written
}

// Where a block publishes its parts.
struct TaggedSet {
  int block;  // this block's share of the schedule
  uint32_t tag;
  TaggedPiece* parts;

  // Slot 2 * block + 1 holds the block's part of a shared request that begins in it, slot 2 * block
  // that of one that began before: a block has at most one of either kind.
  template <typename Params>
  __device__ __forceinline__ int slot(const Params& p, const Segment& segment) const {
    int splits_log2 = p.fixed_splits_log2;
    if (splits_log2 < 0) return 2 * block + (segment.key_begin == 0 ? 1 : 0);
    return (segment.request << splits_log2) +
           (segment.key_begin >> unit_log2_of(p, segment.key_len));
  }
  template <typename Pieces>
  __device__ __forceinline__ TaggedPiece* piece(int slot, int piece) const {
    return parts + static_cast<int64_t>(slot) * Pieces::kCount + piece;
  }
  // log_sum: of rows 2 * (lane % 4) and the next.
  __device__ __forceinline__ void store(TaggedPiece* to, const uint32_t (&pairs)[4],
                                        const float (&log_sum)[2]) const {
    const int lane = threadIdx.x & 31;
    const float even = __shfl_sync(~0u, log_sum[0], lane / 8);
    const float odd = __shfl_sync(~0u, log_sum[1], lane / 8);
    store_units(to, pairs, lane & 4 ? odd : even);
  }
  // log_sum: of row lane / 4.
  __device__ __forceinline__ void store_units(TaggedPiece* to, const uint32_t (&pairs)[4],
                                              float log_sum) const {
    const int lane = threadIdx.x & 31;
    const uint32_t bits = __float_as_uint(log_sum);
    // Or the keys, which pass through L2 beside them, drive them out: 1 to 2 % of a long call.
    const uint64_t stays = ptx::evict_last_policy();
    ptx::store_relaxed(&to->units[lane], uint4{pairs[0], pairs[1], bits, tag}, stays);
    ptx::store_relaxed(&to->units[32 + lane], uint4{pairs[2], pairs[3], bits, tag}, stays);
  }
};

// By a computing thread, once find_tag has found it. shared: the address of `place`.
__device__ __forceinline__ TaggedSet found_set(const KernelParams& p, const TagPlace& place,
                                               uint32_t shared) {
  ptx::mbarrier_wait(shared + offsetof(TagPlace, full), 0);
  return {static_cast<int>(blockIdx.x), place.tag, p.tagged};
}

// What a lane has merged of kLines units of a row: values relative to the weight of `maximum`.
template <int kLines>
struct LaneMerge {
  float value[4 * kLines];
  float maximum;  // base-2 logarithm
  float sum;

  __device__ __forceinline__ void rescale(float raised) {
    const float keep = weight(maximum, raised);
    maximum = raised;
    sum *= keep;
#pragma unroll
    for (int i = 0; i < 4 * kLines; ++i) value[i] *= keep;
  }

  template <int kAtOnce>
  __device__ __forceinline__ void add(const uint4 (&unit)[kAtOnce][kLines]) {
    float raised = maximum;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) raised = fmaxf(raised, __uint_as_float(unit[j][0].z));
    rescale(raised);
    const float offset = raised == kNegativeInfinity ? 0.f : raised;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const float w = ptx::exp2_approx(__uint_as_float(unit[j][0].z) - offset);
      sum += w;
#pragma unroll
      for (int line = 0; line < kLines; ++line) {
        const float2 low = ptx::unpack_half(unit[j][line].x);
        const float2 high = ptx::unpack_half(unit[j][line].y);
        float* v = value + line * 4;
        v[0] = fmaf(low.x, w, v[0]);
        v[1] = fmaf(low.y, w, v[1]);
        v[2] = fmaf(high.x, w, v[2]);
        v[3] = fmaf(high.y, w, v[3]);
      }
    }
  }

  // With what lane ^ kLane has.
  template <int kLane>
  __device__ __forceinline__ void join() {
    rescale(fmaxf(maximum, __shfl_xor_sync(~0u, maximum, kLane)));
    sum += __shfl_xor_sync(~0u, sum, kLane);
#pragma unroll
    for (int i = 0; i < 4 * kLines; ++i) value[i] += __shfl_xor_sync(~0u, value[i], kLane);
  }
};

// Merges this block's share of a request, whose parts may be still to come. Called by the 256
// computing threads once per shared request, after all of the block's own parts are published, so
// no block ever waits for one that waits for it; all blocks are resident (MlaLaunch). warp: 0-7.
// scratch: room for 256 LaneMerge in shared memory.
//
// Items of kLines lines of 32 units (with many parts, of half a line, so that the halves of a warp
// take every second part) are dealt out over the warps of all blocks of the request; with more
// warps than items, 2 to 8 warps of a block share one.
template <typename Pieces, int kLines, int kAtOnce>
__device__ __forceinline__ void merge_tagged(const KernelParams& p, const TaggedSet& set,
                                             const TaggedTask& task, int warp, void* scratch) {
  constexpr int kItemsLog2 = Pieces::kCountLog2 + (kLines == 1 ? 1 : 0);
  constexpr uint32_t kSlotBytes = Pieces::kCount * sizeof(TaggedPiece);
  const int lane = threadIdx.x & 31;
  const int halves_log2 = kLines == 1 && task.count > kAtOnce ? 1 : 0;
  const int items = 1 << (kItemsLog2 + halves_log2);
  const int team_log2 = min(31 - __clz((task.count * 8 >> (kItemsLog2 + halves_log2)) | 1), 3);
  const int teams_log2 = 3 - team_log2, members_log2 = team_log2 + halves_log2;
  const int half = halves_log2 == 0 ? 0 : lane / 16;
  const int first_member = (warp & ((1 << team_log2) - 1)) << halves_log2;
  const int member = first_member + half;
  const auto parts_of = [&](int which) {
    return (task.count - which + (1 << members_log2) - 1) >> members_log2;
  };
  const int parts = parts_of(member);
  const int most_parts = parts_of(first_member);
  const int unit_of_item = halves_log2 == 0 ? lane : lane & 15;
#pragma unroll 1
  for (int base = (set.block - task.first_block) << teams_log2; base < items;
       base += task.count << teams_log2) {
    const int item = base + (warp >> team_log2);
    const int unit_at = (item * kLines << (5 - halves_log2)) + unit_of_item;
    const uint8_t* at = reinterpret_cast<const uint8_t*>(set.parts) +
                        (task.first_block + member) * int64_t{2 * kSlotBytes} + unit_at * 16;
    const uint32_t step = 2 * kSlotBytes << members_log2;
    LaneMerge<kLines> merged = {};
    merged.maximum = kNegativeInfinity;
#pragma unroll 1
    for (int first = 0; first < most_parts; first += kAtOnce) {
      uint4 unit[kAtOnce][kLines];
      const uint4* from[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        from[j] = reinterpret_cast<const uint4*>(at);
        if (j == 0 && first + member == 0) from[j] += kSlotBytes / 16;  // the request begins there
        at += step;
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
          unit[j][line] = {0, 0, __float_as_uint(kNegativeInfinity), set.tag};
          if (first + j < parts) unit[j][line] = ptx::load_relaxed(from[j] + line * 32);
        }
      }
      // What has not arrived is asked for again.
      for (;;) {
        bool missing = false;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
          for (int line = 0; line < kLines; ++line) missing |= unit[j][line].w != set.tag;
        }
        if (!__any_sync(~0u, missing)) break;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
          for (int line = 0; line < kLines; ++line) {
            if (unit[j][line].w != set.tag) unit[j][line] = ptx::load_relaxed(from[j] + line * 32);
          }
        }
      }
      merged.add(unit);
    }
    if (halves_log2 != 0) merged.template join<16>();
    int unit_written = unit_at;
    bool writes = half == 0;
    if (team_log2 != 0) {
      // Each warp of the team takes its share of the units, a lane a unit and a warp's merge of it.
      const int units_log2 = 5 - halves_log2 - team_log2;
      LaneMerge<kLines>* team_merges =
          static_cast<LaneMerge<kLines>*>(scratch) + ((warp >> team_log2) << (team_log2 + 5));
      if (half == 0) team_merges[((warp & ((1 << team_log2) - 1)) << 5) + unit_of_item] = merged;
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
      const int unit = (((warp & ((1 << team_log2) - 1)) << units_log2) +
                        (lane >> team_log2 & ((1 << units_log2) - 1)));
      merged = team_merges[((lane & ((1 << team_log2) - 1)) << 5) + unit];
      merged.template join<1>();
      if (team_log2 > 1) merged.template join<2>();
      if (team_log2 > 2) merged.template join<4>();
      unit_written = unit_at - unit_of_item + unit;
      writes = (lane & ((1 << team_log2) - 1)) == 0 && lane >> team_log2 < 1 << units_log2;
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    }
    if (writes) {
      const float inverse = merged.sum > 0.f ? ptx::reciprocal(merged.sum) : 0.f;
      const int piece = unit_written / 64;
      const int row = Pieces::first_row(piece) + unit_written % 32 / 4;
      if (row < task.row_count) {
        const int dim = Pieces::first_dim(piece) + Pieces::kLaneDims * (unit_written % 4);
        __nv_bfloat16* out = p.output + static_cast<int64_t>(task.first_row + row) * kLatent + dim;
#pragma unroll
        for (int i = 0; i < 2 * kLines; ++i) {
          const int to = Pieces::pair_dim(i + unit_written / 32 % 2 * 2);
          *reinterpret_cast<uint32_t*>(out + to) =
              ptx::pack_bf16(merged.value[2 * i] * inverse, merged.value[2 * i + 1] * inverse);
        }
        if (p.lse != nullptr && dim == 0 && unit_written % 64 < 32) {
          const float log_sum = merged.maximum + ptx::log2_approx(merged.sum);
          p.lse[task.first_row + row] = merged.sum > 0.f ? log_sum * kLn2 : kNegativeInfinity;
        }
      }
    }
  }
}

// Merges the shared requests that find_tag found.
template <typename Pieces>
__device__ __forceinline__ void merge_requests(const KernelParams& p, const TaggedSet& set,
                                               const TagPlace& place, int warp, void* scratch) {
  const int count = place.task_count;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const TaggedTask task = place.tasks[i];
    if (task.count <= 4) {
      merge_tagged<Pieces, 2, 4>(p, set, task, warp, scratch);
    } else {
      merge_tagged<Pieces, 1, 9>(p, set, task, warp, scratch);
    }
  }
}

// The second launch of a fixed cut, a warp a piece: merges the parts of every request in their
// order.
template <typename Pieces>
__global__ void __launch_bounds__(256)
    mla_fixed_merge_kernel(const __grid_constant__ KernelParams p) {
  const int item = blockIdx.x * 8 + threadIdx.x / 32;
  const int request = item / Pieces::kCount, piece = item % Pieces::kCount;
  if (request >= p.batch * p.row_blocks) return;
  const int count = units_of(p, request);
  if (count == 1) return;
  const int lane = threadIdx.x & 31;
  const TaggedPiece* first =
      p.tagged + (static_cast<int64_t>(request) << p.fixed_splits_log2) * Pieces::kCount + piece;
  const LaneValues<4> merged = merge_parts<4, 8>(count, [&](int i, LanePart<4>* loaded) {
    const TaggedPiece* from = first + i * Pieces::kCount;
    const uint4 low = __ldcg(&from->units[lane]), high = __ldcg(&from->units[32 + lane]);
    loaded->pairs[0] = low.x;
    loaded->pairs[1] = low.y;
    loaded->pairs[2] = high.x;
    loaded->pairs[3] = high.y;
    loaded->log_sum = __uint_as_float(low.z);
  });
  write_piece<Pieces, 4>(p, RowRange(p, request), piece, 0, merged);
}

}  // namespace foresail::cuda::mla
