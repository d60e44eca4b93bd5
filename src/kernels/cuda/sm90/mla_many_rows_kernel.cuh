// The MLA decode kernel for more than 64 query rows (64 of them a block); mla_decode.cu launches
// it. Two warpgroups work on two tiles of keys, A and B, at once:
//   left   S_A = Q K_A^T, softmax;   O[64, dims 0-255]   += P_A V_A, then P_B V_B
//   right  S_B = Q K_B^T, softmax;   O[64, dims 256-511] += P_A V_A, then P_B V_B
// The right one asks for P_A V_A before its own softmax, so that this runs beside the product; the
// left one's softmax runs beside the right one's scores. Weights are exchanged as packed fragments:
// thread i of one warpgroup holds what thread i of the other needs.
#pragma once

#include "kernels/cuda/sm90/mla_producers.cuh"
#include "kernels/cuda/sm90/mla_wide_pieces.cuh"
#include "kernels/cuda/sm90/wgmma.h"

namespace foresail::cuda::mla {

// A tile lands, and is freed, in five parts: rotated dims, then latent dims by 128. Each of the
// first, of the left dims' and of the right dims' has a copying warp, since they are freed in that
// order within but not across these three.
struct ManyRowsLayout {
  static constexpr int kCopyRegisters = 56;
  static constexpr int kComputeRegisters = 224;
  static_assert(kCopyRegisters * 128 + kComputeRegisters * 256 == kThreads * 168);
  static constexpr int kParts = 5;
  static constexpr int kQueryStages = 1;
  static constexpr int kQueryBytes = kChunks * kWideRows * 128;
  static constexpr int kQuery = kStages * kStageBytes;
  static constexpr int kWeights = kQuery + kQueryBytes;  // [4 steps of 16 keys][128 threads] uint4
  static constexpr int kReference = kWeights + kWideRows * 128;  // [128 threads] float2
  static constexpr int kSums = kReference + 128 * 8;             // [2][2 warpgroups][64]
  static constexpr int kHidden = kSums + 2 * 2 * kWideRows * 4;  // [2][64] int
  static constexpr int kTasks = kHidden + 2 * kWideRows * 4;     // ManyRowsTask [2]
  static constexpr int kShared = kTasks + 2 * 48;                // SharedRequest [2]
  static constexpr int kSharedCount = kShared + 2 * 16;          // int: how many of them
  static constexpr int kFull = kSharedCount + 16;                // [kStages][kParts]
  static constexpr int kEmpty = kFull + kStages * kParts * 8;    // the same
  static constexpr int kQueryFull = kEmpty + kStages * kParts * 8;
  static constexpr int kQueryEmpty = kQueryFull + 8;
  static constexpr int kWeightsFull = kQueryEmpty + 8;   // of the left, of the right warpgroup
  static constexpr int kCleared = kWeightsFull + 2 * 8;  // of the same
  static constexpr int kTotal = kCleared + 2 * 8;
  static_assert(kTotal <= 227 * 1024);

  static __host__ __device__ constexpr int first_chunk(int part) {
    return part == 0 ? kLatentChunks : (part - 1) * 2;
  }
  static __host__ __device__ constexpr int chunks(int part) { return part == 0 ? 1 : 2; }
};

// What the computing warpgroups need to know of a segment; the queries' warp walks for them.
struct alignas(16) ManyRowsTask {
  int tiles;  // -1: no segment any more
  int key_begin;
  int key_end;
  int key_len;
  int last_query;
  int request;
  int first_unit;
  int units;
  int total;   // of the walker
  int blocks;  // the same
  bool whole;
};
static_assert(sizeof(ManyRowsTask) == 48);

// Row blocks of a request that have schedules of their own lie next to each other.
struct ManyRowsShare {
  int share;    // of the schedule
  int row_set;  // whose schedule it is

  explicit __device__ __forceinline__ ManyRowsShare(const KernelParams& p)
      : share(p.row_sets == 1 ? blockIdx.x : divide(blockIdx.x, p.by_row_blocks)),
        row_set(blockIdx.x - share * p.row_sets) {}
  __device__ __forceinline__ Walker walker(const KernelParams& p, int first_kv_end) const {
    return Walker(p, share, first_kv_end, row_set, p.row_sets);
  }
  __device__ __forceinline__ PartSet part_set(const KernelParams& p) const {
    const int slots_before = row_set * 2 * p.shares;
    return {share, p.partials + static_cast<int64_t>(slots_before) * WidePieces::kCount,
            p.counters + slots_before};
  }
};

__device__ __forceinline__ void produce_parts(const KernelParams& p, const CUtensorMap* page_map,
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
__device__ __forceinline__ void produce_many_queries(const KernelParams& p, const CUtensorMap* map,
                                                     uint8_t* smem, uint32_t shared,
                                                     Walker walker) {
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
      *task = {(keys + kTile - 1) / kTile,
               segment.key_begin,
               segment.key_end,
               segment.key_len,
               rows.last_query,
               segment.request,
               segment.first_unit,
               segment.units,
               walker.total,
               walker.blocks,
               segment.whole};
    }
    // Every lane arrives, for what it wrote.
    if (lane != 0) ptx::mbarrier_arrive(shared + L::kQueryFull);
    if (lane == 0) {
      copy_queries<L, kWideRows>(shared + L::kQuery, map, rows.first, shared + L::kQueryFull);
    }
    __syncwarp();
  }
}

// One of the two warpgroups; kGroup, where it is a parameter: 0 left, 1 right.
struct ManyRowsGroup {
  using L = ManyRowsLayout;
  using Pieces = WidePieces;
  const KernelParams& p;
  uint8_t* smem;
  uint32_t shared;
  int group, thread, warp, lane;  // thread, warp: within the warpgroup
  float out[2][64];               // 128 latent dims each
  float s[32];                    // row lane / 4 at i % 4 < 2, row lane / 4 + 8 at the others
  float reference[2];             // what weights in `out` and `sum` are relative to, base 2
  float sum[2];                   // of this warpgroup's tiles

  // Frees a part for the next copy.
  __device__ __forceinline__ void free_part(int stage, int part) {
    const uint32_t barrier = shared + L::kEmpty + (stage * L::kParts + part) * 8;
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  template <int kGroup>
  __device__ __forceinline__ void free_values(int stage, int half) {
    free_part(stage, 1 + kGroup * 2 + half);
  }

  // Asks for products of parts of this warpgroup's tile: one group.
  template <int kGroup, int kFirst, int kParts>
  __device__ __forceinline__ void ask_scores(int parity) {
    const uint64_t keys = ptx::uniform_descriptor(shared + kGroup * kStageBytes);
    const uint64_t queries = ptx::uniform_descriptor(shared + L::kQuery);
#pragma unroll
    for (int part = kFirst; part < kFirst + kParts; ++part) {
      ptx::mbarrier_wait(shared + L::kFull + (kGroup * L::kParts + part) * 8, parity);
      // Here, behind the wait, or the compiler serialises all products (C7520).
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < L::chunks(part) * 4; ++i) {
        const int offset = ((L::first_chunk(part) + i / 4) * kChunkBytes + (i % 4) * 32) / 16;
        ptx::Wgmma<64>::run(s, queries + offset, keys + offset, part + i > 0);
      }
    }
    ptx::wgmma_commit();
  }

  // Asks for the values of a tile: two groups, 128 dims each.
  template <int kGroup>
  __device__ __forceinline__ void ask_values(int stage, const uint32_t (&weights)[4][4]) {
    const uint64_t values = ptx::wide_operand_descriptor(
        shared + stage * kStageBytes + kGroup * 4 * kChunkBytes, kChunkBytes);
    ptx::pin_registers(out[0]);
    ptx::pin_registers(out[1]);
    ptx::wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        ptx::wgmma_registers<1>(out[half], weights[k],
                                values + (half * 2 * kChunkBytes + k * 2048) / 16, 1);
      }
      ptx::wgmma_commit();
    }
  }

  __device__ __forceinline__ void keep(const uint32_t (&weights)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) ptx::keep_registers(weights[k]);
  }

  // After ask_values, if nothing was asked for since.
  template <int kGroup>
  __device__ __forceinline__ void finish_values(int stage, const uint32_t (&weights)[4][4]) {
    ptx::wgmma_wait<1>();
    free_values<kGroup>(stage, 0);
    ptx::wgmma_wait<0>();
    keep(weights);
    ptx::pin_registers(out[0]);
    ptx::pin_registers(out[1]);
    free_values<kGroup>(stage, 1);
  }

  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i / 64][i % 64] *= factor[i % 4 / 2];
  }

  // Weights are relative to another reference from now on. factor: for those before.
  __device__ __forceinline__ void follow(int row, float moved, float (&factor)[2]) {
    factor[row] = weight(reference[row], moved);
    reference[row] = moved;
    sum[row] *= factor[row];
  }

  // Weights of this warpgroup's tile from its scores. Returns whether the reference of a row of
  // this warp has moved; factor is known only then.
  template <typename Between>
  __device__ __forceinline__ bool weigh(const ManyRowsTask& task, const int* hidden, int key,
                                        int seen_by_all, uint32_t (&weights)[4][4],
                                        float (&factor)[2], const Between& between) {
    if (key + kTile > seen_by_all) {
      const int* of_row = hidden + warp * 16 + lane / 4;
      const int limit[2] = {min(task.key_end, task.key_len - of_row[0]),
                            min(task.key_end, task.key_len - of_row[8])};
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int at = key + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (at >= limit[i % 4 / 2]) s[i] = kNegativeInfinity;
      }
    }
    float raised[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 1; i < 32; ++i) {
      if (i != 2) raised[i % 4 / 2] = fmaxf(raised[i % 4 / 2], s[i]);
    }
    // Mostly nobody's score exceeds the reference by much: then rows' maxima need not be known.
    bool exceeds = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      exceeds |= lazy_maximum(reference[r], raised[r] * p.scale_log2) != reference[r];
    }
    const bool moved = __any_sync(~0u, exceeds);
    if (moved) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        raised[r] = fmaxf(raised[r], __shfl_xor_sync(~0u, raised[r], 1));
        raised[r] = fmaxf(raised[r], __shfl_xor_sync(~0u, raised[r], 2));
        follow(r, lazy_maximum(reference[r], raised[r] * p.scale_log2), factor);
      }
    }
    float offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) offset[r] = reference[r] == kNegativeInfinity ? 0.f : reference[r];
    between();
    float part[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s[i] = ptx::exp2_approx(s[i] * p.scale_log2 - offset[i % 4 / 2]);
      part[i % 4 / 2] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += part[r];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = ptx::pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
      }
    }
    return moved;
  }

  // See WideScorer.
  template <int kGroup>
  __device__ __forceinline__ void clear_tail(const ManyRowsTask& task, int key, int seen_by_all) {
    if (key + kTile <= seen_by_all) return;
    const int count = task.key_end - key;
    if (count >= kTile) return;
    const int pad = (count + kSmallBox - 1) / kSmallBox * kSmallBox - count;
    for (int i = thread; i < pad * 8 * kLatentChunks; i += 128) {
      const int chunk = i / (pad * 8);
      const int rest = i - chunk * pad * 8;
      *reinterpret_cast<uint4*>(smem + kGroup * kStageBytes + chunk * kChunkBytes + count * 128 +
                                rest * 16) = uint4{0, 0, 0, 0};
    }
    ptx::fence_proxy_async();
    ptx::mbarrier_meet(shared + L::kCleared + kGroup * 8);
  }

  __device__ __forceinline__ void tell_reference() {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared + L::kReference + thread * 8),
                 "f"(reference[0]), "f"(reference[1])
                 : "memory");
  }

  template <int kGroup>
  __device__ __forceinline__ void publish(const uint32_t (&weights)[4][4]) {
    uint4* to = reinterpret_cast<uint4*>(smem + L::kWeights) + thread;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      to[k * 128] = {weights[k][0], weights[k][1], weights[k][2], weights[k][3]};
    }
    if (kGroup == 0) tell_reference();
    ptx::mbarrier_arrive(shared + L::kWeightsFull + kGroup * 8);
  }

  // The weights of the other warpgroup's tile. Returns what weigh does.
  template <int kGroup>
  __device__ __forceinline__ bool receive(int parity, uint32_t (&weights)[4][4],
                                          float (&factor)[2]) {
    ptx::mbarrier_wait(shared + L::kWeightsFull + (1 - kGroup) * 8, parity);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 packed = reinterpret_cast<const uint4*>(smem + L::kWeights)[k * 128 + thread];
      weights[k][0] = packed.x;
      weights[k][1] = packed.y;
      weights[k][2] = packed.z;
      weights[k][3] = packed.w;
    }
    const float2 theirs = reinterpret_cast<const float2*>(smem + L::kReference)[thread];
    const bool moved = __any_sync(~0u, theirs.x != reference[0] || theirs.y != reference[1]);
    if (moved) {
      follow(0, theirs.x, factor);
      follow(1, theirs.y, factor);
    }
    return moved;
  }

  // pairs, odds: tiles A and B that there were before this segment; of tile A there is one more
  // where their number is odd.
  __device__ __forceinline__ void run_left(const ManyRowsTask& task, int tiles, const int* hidden,
                                           int pairs, int odds) {
    uint32_t weights[4][4];
    float factor[2];
    const int seen_by_all = min(task.key_len - task.last_query, task.key_end);
    int key = task.key_begin;
    ask_scores<0, 0, 5>(pairs & 1);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
    const auto first_tile = [&] {
      free_part(0, 0);
      const bool moved = weigh(task, hidden, key, seen_by_all, weights, factor, [] {});
      clear_tail<0>(task, key, seen_by_all);
      publish<0>(weights);
      if (moved) rescale(factor);
      ask_values<0>(0, weights);
      finish_values<0>(0, weights);
    };
    const auto ask_second_tile = [&] {
      if (receive<0>(odds & 1, weights, factor)) rescale(factor);
      ask_values<0>(1, weights);
    };
    int t = 0;
    for (; t + 2 < tiles; t += 2, key += 2 * kTile, ++pairs, ++odds) {
      first_tile();
      ask_second_tile();
      ask_scores<0, 0, 1>((pairs & 1) ^ 1);
      ptx::wgmma_wait<2>();
      free_values<0>(1, 0);
      ptx::wgmma_wait<1>();
      keep(weights);
      free_values<0>(1, 1);
      ask_scores<0, 1, 4>((pairs & 1) ^ 1);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
      ptx::pin_registers(out[0]);
      ptx::pin_registers(out[1]);
    }
    first_tile();
    if (t + 1 < tiles) {
      ask_second_tile();
      finish_values<0>(1, weights);
    }
  }

  __device__ __forceinline__ void run_right(const ManyRowsTask& task, int tiles, const int* hidden,
                                            int pairs, int odds) {
    uint32_t weights[4][4], own[4][4];
    float factor[2];
    const int seen_by_all = min(task.key_len - task.last_query, task.key_end);
    int key = task.key_begin + kTile;
    int t = 0;
    for (; t + 1 < tiles; t += 2, key += 2 * kTile, ++pairs, ++odds) {
      ask_scores<1, 0, 5>(odds & 1);
      if (receive<1>(pairs & 1, weights, factor)) {
        // The wait is for the compiler, which serialises all products without it.
        ptx::wgmma_wait<0>();
        ptx::pin_registers(s);
        rescale(factor);
      }
      ask_values<1>(0, weights);
      ptx::wgmma_wait<2>();
      ptx::pin_registers(s);
      free_part(1, 0);
      const bool moved = weigh(task, hidden, key, seen_by_all, own, factor, [&] {
        // The stores here and in publish keep the compiler from putting the softmax behind the
        // waits for the product that it is to run beside.
        tell_reference();
        ptx::wgmma_wait<1>();
        free_values<1>(0, 0);
      });
      clear_tail<1>(task, key, seen_by_all);
      publish<1>(own);
      ptx::wgmma_wait<0>();
      keep(weights);
      ptx::pin_registers(out[0]);
      ptx::pin_registers(out[1]);
      free_values<1>(0, 1);
      if (moved) rescale(factor);
      ask_values<1>(1, own);
      finish_values<1>(1, own);
    }
    if (t < tiles) {
      if (receive<1>(pairs & 1, weights, factor)) rescale(factor);
      ask_values<1>(0, weights);
      finish_values<1>(0, weights);
    }
  }

  // i: number of the segment.
  __device__ __forceinline__ void finish_segment(const ManyRowsTask& task, int i) {
    float* sums = reinterpret_cast<float*>(smem + L::kSums) + (i & 1) * 2 * kWideRows;
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      if (lane % 4 == 0) sums[group * kWideRows + row + 8 * r] = sum[r];
    }
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    float inverse[2], log_sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = sums[row + 8 * r] + sums[kWideRows + row + 8 * r];
      inverse[r] = total > 0.f ? __fdividef(1.f, total) : 0.f;
      log_sum[r] = total > 0.f ? reference[r] + __log2f(total) : kNegativeInfinity;
    }
    const RowRange rows(p, task.request);
    const PartSet set = ManyRowsShare(p).part_set(p);
#pragma unroll
    for (int j = 0; j < 128; ++j) out[j / 64][j % 64] *= inverse[j % 4 / 2];
    if (task.whole) {
      __nv_bfloat16* to = p.output + static_cast<int64_t>(rows.first + row) * kLatent +
                          group * 256 + 2 * (lane % 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (row + 8 * r >= rows.count) break;
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          const float* o = &out[j / 16][j % 16 * 4 + 2 * r];
          *reinterpret_cast<uint32_t*>(to + r * 8 * kLatent + j * 8) = ptx::pack_bf16(o[0], o[1]);
        }
        if (p.lse != nullptr && group == 0 && lane % 4 == 0) {
          write_lse(p, rows, row + 8 * r, log_sum[r]);
        }
      }
      return;
    }
    const int slot = partial_slot(set.block, task.first_unit, task.total, task.blocks);
    PartialPiece* to = set.template piece<Pieces>(slot, group * 64 + warp);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* o = &out[step / 4][step % 4 * 16 + 2 * r];
        __stcg(reinterpret_cast<uint4*>(to[(step * 2 + r) * 4].pairs) + lane,
               uint4{ptx::pack_half(o[0], o[1]), ptx::pack_half(o[4], o[5]),
                     ptx::pack_half(o[8], o[9]), ptx::pack_half(o[12], o[13])});
        if (lane % 4 == 0) __stcg(&to[(step * 2 + r) * 4].log_sum[lane / 4], log_sum[r]);
      }
    }
    if (group == 0 && thread == 0) {
      int* count = reinterpret_cast<int*>(smem + L::kSharedCount);
      SharedRequest* requests = reinterpret_cast<SharedRequest*>(smem + L::kShared);
      requests[*count] = {task.request, task.first_unit, task.units};
      ++*count;
    }
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    // Releases the stores of both warpgroups: the barrier ordered them before this.
    if (group == 0 && thread == 0) {
      ptx::add_release(set.counter(task.first_unit, task.total, task.blocks), 1);
    }
  }

  __device__ __forceinline__ void run() {
    int pairs = 0, odds = 0;
    for (int i = 0;; ++i) {
      ptx::mbarrier_wait(shared + L::kQueryFull, i & 1);
      const ManyRowsTask& task = reinterpret_cast<const ManyRowsTask*>(smem + L::kTasks)[i & 1];
      const int* hidden = reinterpret_cast<const int*>(smem + L::kHidden) + (i & 1) * kWideRows;
      const int tiles = __shfl_sync(~0u, task.tiles, 0);  // known to be uniform
      if (tiles < 0) {
        merge(task.total, task.blocks);
        return;
      }
#pragma unroll
      for (int j = 0; j < 128; ++j) out[j / 64][j % 64] = 0.f;
      reference[0] = reference[1] = kNegativeInfinity;
      sum[0] = sum[1] = 0.f;
      if (tiles > 0) {
        if (group == 0) {
          run_left(task, tiles, hidden, pairs, odds);
        } else {
          run_right(task, tiles, hidden, pairs, odds);
        }
      }
      pairs += (tiles + 1) / 2;
      odds += tiles / 2;
      ptx::mbarrier_arrive(shared + L::kQueryEmpty);  // every lane: all of them read the task
      finish_segment(task, i);
    }
  }

  __device__ __forceinline__ void merge(int total, int blocks) {
    // All tiles are consumed after this, their memory is free, and the list is written.
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    const SharedRequest* requests = reinterpret_cast<const SharedRequest*>(smem + L::kShared);
    const int merges = *reinterpret_cast<const int*>(smem + L::kSharedCount);
#pragma unroll 1
    for (int i = 0; i < merges; ++i) {
      merge_request<Pieces, 9>(p, ManyRowsShare(p).part_set(p), total, blocks, requests[i],
                               RowRange(p, requests[i].request), group * 4 + warp, smem);
    }
  }
};

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
      produce_many_queries(params, &query_map, smem, shared, walker);
    } else {
      produce_parts(params, &page_map, &small_map, shared, walker, early,
                    warp == 0 ? 0 : warp * 2 - 1, warp == 0 ? 1 : 2);
    }
  } else {
    ptx::register_increase<L::kComputeRegisters>();
    ManyRowsGroup group{params,   smem, shared, warp / 4 - 1, static_cast<int>(threadIdx.x & 127),
                        warp & 3, lane};
    group.run();
  }
}

}  // namespace foresail::cuda::mla
