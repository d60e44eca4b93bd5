// The MLA decode kernel for an e4m3 cache and 33 to 64 query rows; mla_decode.cu launches it.
//
// Roles as in the wide kernel, a product of its own form each:
//   S[64, 64 keys]  = Q[64, 576] * K^T     one warpgroup: e4m3, straight from the tile; it also
//                                          weighs, a tile or two ahead of
//   O^T[512, 64]   += V^T * P^T[keys, 64]  two warpgroups, 256 latent dims each: codes become
//                                          float16 on their way from the tile to registers
// A query row is two terms of e4m3 (mla_code_query.cuh), two products into the same accumulators.
// They add up with about 14 bits; see docs/mla-decode.md for what that costs.
#pragma once

#include "kernels/cuda/sm90/mla_code_query.cuh"
#include "kernels/cuda/sm90/mla_narrow_output.cuh"
#include "kernels/cuda/sm90/mla_producers.cuh"
#include "kernels/cuda/sm90/mla_wide_scores.cuh"
#include "kernels/cuda/sm90/wgmma.h"
#include "kernels/cuda/sm90/wgmma_codes.h"

namespace foresail::cuda::mla {

struct CodeWideLayout {
  static constexpr int kCopyRegisters = 48;
  static constexpr int kScoreRegisters = 112;
  static constexpr int kValueRegisters = 176;
  static_assert(kCopyRegisters + kScoreRegisters + 2 * kValueRegisters == 4 * 128);
  static constexpr int kStages = 3;
  static constexpr int kParts = 1;
  static constexpr int kEarlyPages = 1;  // limited by registers
  static constexpr int kTileChunks = 5;
  static constexpr int kChunkColumns = 128;
  static constexpr int kStageBytes = kTileChunks * kChunkBytes;
  static constexpr int kTermBytes = kWideRows * 128;  // of a chunk, one term of all rows
  static constexpr int kWeightBytes = kWideRows * 128;
  static constexpr int kQuery = kStages * kStageBytes;  // [2 terms * 64, 576] e4m3
  static constexpr int kWeights = kQuery + kTileChunks * 2 * kTermBytes;  // P^T [2][64, 64 keys]
  static constexpr int kRescale = kWeights + 2 * kWeightBytes;            // [2][64] float
  static constexpr int kRescales = kRescale + 2 * kWideRows * 4;  // [2][4 warps] int: any of them
  static constexpr int kTotals = kRescales + 2 * 4 * 4;           // [2][inverse, log_sum][64]
  static constexpr int kRowScale = kTotals + 2 * 2 * kWideRows * 4;  // [64] float
  static constexpr int kHidden = kRowScale + kWideRows * 4;          // [64] int
  static constexpr int kTasks = kHidden + kWideRows * 4;             // WideTask [2]
  static constexpr int kShared = kTasks + 64;                        // SharedRequest [2]
  static constexpr int kSharedCount = kShared + 2 * 16;              // int: how many of them
  static constexpr int kFull = kSharedCount + 16;                    // [kStages][kParts]
  static constexpr int kEmpty = kFull + kStages * kParts * 8;
  static constexpr int kWeightsFull = kEmpty + kStages * 8;  // [2], like those below
  static constexpr int kWeightsEmpty = kWeightsFull + 2 * 8;
  static constexpr int kTaskFull = kWeightsEmpty + 2 * 8;
  static constexpr int kTotalsFull = kTaskFull + 2 * 8;
  static constexpr int kSegmentDone = kTotalsFull + 2 * 8;
  static constexpr int kQueryFull = kSegmentDone + 2 * 8;
  static constexpr int kTotal = kQueryFull + 8;
  static_assert(kTotal <= 227 * 1024);
};

// The score warpgroup: S, softmax, and the sums of a segment.
struct CodeScorer {
  using L = CodeWideLayout;
  const KernelParams& p;
  uint8_t* smem;
  uint32_t shared;
  static constexpr int kTermProducts = kKeyDim / 32;
  static constexpr int kProducts = 2 * kTermProducts;
  // Of the next tile's products, asked for before and between the steps of a softmax.
  static constexpr int kFirstProducts = 6;
  static constexpr int kBetweenProducts = 4;
  static constexpr float kMostWeight = 4096.f;  // while references do not move
  int thread, warp, lane;                       // within the warpgroup
  float next[32];      // scores: row lane / 4 at i % 4 < 2, row lane / 4 + 8 at the others
  float s[32];         // of the tile before: base 2, relative to the reference
  float scale[2];      // from next to base 2
  float reference[2];  // what weights are relative to, base 2
  float sum[2];

  __device__ __forceinline__ float* floats(int offset) {
    return reinterpret_cast<float*>(smem + offset);
  }

  __device__ __forceinline__ float offset(int r) {
    return reference[r] == kNegativeInfinity ? 0.f : reference[r];
  }

  __device__ __forceinline__ uint64_t key_operand(int tile) {
    return ptx::uniform_descriptor(shared + tile % L::kStages * L::kStageBytes);
  }

  __device__ __forceinline__ void wait_tile(int tile) {
    ptx::mbarrier_wait(shared + L::kFull + tile % L::kStages * 8, (tile / L::kStages) & 1);
  }

  // One of the products of a tile. The second terms go first: they are small, and what is added to
  // small sums loses little.
  __device__ __forceinline__ void product(uint64_t queries, uint64_t keys, int i) {
    const int term = i < kTermProducts ? 1 : 0;
    const int chunk = i % kTermProducts / 4, step = i % kTermProducts % 4;
    ptx::WgmmaCodes<64>::run(next, queries + ((chunk * 2 + term) * L::kTermBytes + step * 32) / 16,
                             keys + (chunk * kChunkBytes + step * 32) / 16, i > 0);
  }

  __device__ __forceinline__ void take_scores() {
    ptx::wgmma_wait<0>();
    ptx::pin_registers(next);
  }

  __device__ __forceinline__ void mask_tile(const Segment& segment, int key) {
    mask_scores(s, reinterpret_cast<const int*>(smem + L::kHidden) + warp * 16, key,
                segment.key_len, segment.key_end);
  }

  // Values past the end would multiply a zero weight, but may be NaN. Scores of these keys are
  // masked, so it does not matter whether other warps still read them.
  __device__ __forceinline__ void clear_tail(int stage, int count) {
    uint8_t* at = smem + stage * L::kStageBytes + lane / 8 * kChunkBytes + lane % 8 * 16;
    for (int row = count + warp; row < kTile; row += 4) {
      *reinterpret_cast<uint4*>(at + row * 128) = uint4{0, 0, 0, 0};
    }
  }

  // Until the value warpgroups are done with the segment whose task and totals lay where those of
  // segment i will.
  __device__ __forceinline__ void wait_done(int i) {
    ptx::mbarrier_wait(shared + L::kSegmentDone + (i & 1) * 8, (i / 2 & 1) ^ 1);
  }

  // The value warpgroups bring the queries: they wait for the weights anyway. i: of the block's
  // segments.
  __device__ __forceinline__ void begin_segment(const Segment& segment, int i) {
    const RowRange rows(p, segment.request);
    ptx::barrier_sync(kBarWarpgroup, 128);  // all are done with the rows before
    if (thread < kWideRows) {
      reinterpret_cast<int*>(smem + L::kHidden)[thread] = rows.hidden_keys(p, thread);
    }
    ptx::barrier_sync(kBarWarpgroup, 128);
    ptx::mbarrier_wait(shared + L::kQueryFull, i & 1);
    reference[0] = reference[1] = kNegativeInfinity;
    sum[0] = sum[1] = 0.f;
    const float* row_scale = floats(L::kRowScale) + warp * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) scale[r] = row_scale[8 * r];
  }

  // Weights of a tile into the value warpgroups' B operand [64 rows, 64 keys] of float16.
  // between(i): what follows those of 16 keys; the compiler moves no product past their store.
  // Returns the sums of a lane's weights.
  template <typename Between>
  __device__ __forceinline__ float2 store_weights(uint32_t weights, const Between& between) {
    const int line = lane & 7, matrix = lane >> 3;
    const uint32_t row = weights + (warp * 16 + (matrix & 1) * 8 + line) * 128;
    float part[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float x = ptx::exp2_approx(s[i * 8 + j * 2]);
        const float y = ptx::exp2_approx(s[i * 8 + j * 2 + 1]);
        part[j % 2] += x;
        part[j % 2] += y;
        pairs[j] = ptx::pack_half(x, y);
      }
      ptx::store_matrix_x4(row + (((i * 2 + (matrix >> 1)) ^ line) << 4), pairs[0], pairs[1],
                           pairs[2], pairs[3]);
      between(i);
    }
    return {part[0], part[1]};
  }

  // The largest of each row of s.
  __device__ __forceinline__ void find_largest(float (&largest)[2]) {
    largest[0] = s[0];
    largest[1] = s[2];
#pragma unroll
    for (int i = 1; i < 32; ++i) {
      if (i != 2) largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], s[i]);
    }
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        largest[r] = fmaxf(largest[r], __shfl_xor_sync(~0u, largest[r], step));
      }
    }
  }

  // To where no weight of this tile is above 256. factor: for all weights before.
  __device__ __forceinline__ void move_references(float (&factor)[2]) {
    float largest[2];
    find_largest(largest);
    float shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float old = reference[r];
      shift[r] = offset(r);
      reference[r] = lazy_maximum(old, largest[r] + shift[r]);
      factor[r] = weight(old, reference[r]);
      shift[r] -= offset(r);
      sum[r] *= factor[r];
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] += shift[i % 4 / 2];
  }

  // s from the scores of a tile; kLast: it may have less than kTile keys.
  template <bool kLast>
  __device__ __forceinline__ void scale_scores(const Segment& segment, int key) {
    const float minus[2] = {-offset(0), -offset(1)};
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = __fmaf_rn(next[i], scale[i % 4 / 2], minus[i % 4 / 2]);
    if (key + kTile > segment.key_len - (p.q_len - 1) || (kLast && key + kTile > segment.key_end)) {
      mask_tile(segment, key);
    }
  }

  // Of the first tile: a row that sees none of its keys sees none of the segment's.
  __device__ __forceinline__ void find_references(const Segment& segment) {
    scale_scores<true>(segment, segment.key_begin);
    find_largest(reference);
  }

  // From the scores of a tile, whose first key is `key`, to weights for the value warpgroups.
  // kNext: there is a next tile in the segment. A warp that issues products is held until all but
  // the last few are done: so only half of the next tile's are issued before the weights are passed
  // on, between the steps of the softmax. References are taken as they are; if that was wrong,
  // which the sums tell, weights are found again.
  template <bool kNext>
  __device__ __forceinline__ void weigh_tile(const Segment& segment, int tile, int key) {
    const int buffer = tile & 1;
    const uint64_t keys = key_operand(tile + 1);
    const uint64_t queries = ptx::uniform_descriptor(shared + L::kQuery);
    int issued = 0;  // known to the compiler
    const auto products = [&](int count) {
      if (!kNext) return;
#pragma unroll
      for (int n = 0; n < count; ++n) product(queries, keys, issued++);
    };
    scale_scores<!kNext>(segment, key);
    if (kNext) wait_tile(tile + 1);
    ptx::mbarrier_wait(shared + L::kWeightsEmpty + buffer * 8, (tile / 2 & 1) ^ 1);
    if (kNext) {
      ptx::pin_registers(next);
      ptx::wgmma_fence();
    }
    products(kFirstProducts);
    const uint32_t weights = shared + L::kWeights + buffer * L::kWeightBytes;
    float2 part = store_weights(weights, [&](int i) {
      if (i < 3) products(kBetweenProducts);
    });
    if (kNext) ptx::wgmma_commit();
    const bool moved = __any_sync(~0u, part.x > kMostWeight || part.y > kMostWeight);
    if (moved) {
      float factor[2];
      move_references(factor);
      part = store_weights(weights, [](int) {});
      if (lane % 4 == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          floats(L::kRescale)[buffer * kWideRows + warp * 16 + lane / 4 + 8 * r] = factor[r];
        }
      }
    }
    sum[0] += part.x;
    sum[1] += part.y;
    if (lane == 0) reinterpret_cast<int*>(smem + L::kRescales)[buffer * 4 + warp] = moved;
    if (!kNext) clear_tail(tile % L::kStages, segment.key_end - key);
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(shared + L::kWeightsFull + buffer * 8);
    if (lane == 0) ptx::mbarrier_arrive(shared + L::kEmpty + tile % L::kStages * 8);
    if (!kNext) return;
    ptx::wgmma_fence();
    products(kProducts - issued);
    ptx::wgmma_commit();
    take_scores();
  }

  __device__ __forceinline__ void score_segment(const Segment& segment, int* tile) {
    int key = segment.key_begin;
#pragma unroll
    for (int i = 0; i < 32; ++i) next[i] = 0.f;  // or they would be alive until here
    const uint64_t keys = key_operand(*tile);
    const uint64_t queries = ptx::uniform_descriptor(shared + L::kQuery);
    wait_tile(*tile);
    ptx::pin_registers(next);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) product(queries, keys, i);
    ptx::wgmma_commit();
    take_scores();
    find_references(segment);
#pragma unroll 1
    for (; key + kTile < segment.key_end; key += kTile) {
      weigh_tile<true>(segment, *tile, key);
      ++*tile;
    }
    weigh_tile<false>(segment, (*tile)++, key);
  }

  __device__ __forceinline__ void store_totals(int i) {
    float* totals = floats(L::kTotals) + (i & 1) * 2 * kWideRows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int row = warp * 16 + lane / 4 + 8 * r;
      if (lane % 4 == 0) {
        totals[row] = total > 0.f ? __fdividef(p.cache_scale, total) : 0.f;
        totals[kWideRows + row] = total > 0.f ? reference[r] + __log2f(total) : kNegativeInfinity;
      }
    }
  }

  __device__ __forceinline__ void run(int first_kv_end) {
    Walker walker(p, blockIdx.x, first_kv_end);
    Segment segment;
    WideTask* tasks = reinterpret_cast<WideTask*>(smem + L::kTasks);
    if (thread == 0) {  // once, or they would stay in registers
      tasks[0].total = tasks[1].total = walker.total;
      tasks[0].blocks = tasks[1].blocks = walker.blocks;
    }
    int tile = 0;
    int i = 0;
    for (;; ++i) {
      wait_done(i);
      if (thread == 0) tasks[i & 1].first_unit = walker.first_unit;
      if (!walker.next(p, &segment)) break;
      if (thread == 0) {
        const int keys = max(segment.key_end - segment.key_begin, 0);
        WideTask& task = tasks[i & 1];
        task.tiles = (keys + kTile - 1) / kTile;
        task.request = segment.request;
        task.units = segment.units;
        task.whole = segment.key_begin == 0 && segment.key_end == segment.key_len;
        ptx::mbarrier_arrive(shared + L::kTaskFull + (i & 1) * 8);
      }
      begin_segment(segment, i);
      if (segment.key_begin < segment.key_end) score_segment(segment, &tile);
      store_totals(i);
      ptx::mbarrier_arrive(shared + L::kTotalsFull + (i & 1) * 8);
    }
    if (thread == 0) {
      tasks[i & 1].tiles = -1;
      ptx::mbarrier_arrive(shared + L::kTaskFull + (i & 1) * 8);
    }
  }
};

// One of the two value warpgroups: O^T, and the output.
struct CodeAccumulator {
  using L = CodeWideLayout;
  using Pieces = NarrowPieces<kWideRows>;
  static constexpr int kBlocks = kWideRows / 8;
  const KernelParams& p;
  uint8_t* smem;
  uint32_t shared;
  int group, warp, lane;  // warp: within the warpgroup
  float out[4][32];       // O^T, four blocks of 64 latent dims
  uint32_t a[2][8];       // V^T of 32 keys and 16 dims, in a product or before one
  uint32_t codes[4];      // of the next

  // Load `at` of eight of a tile: codes of 32 keys (half at / 4) and this warp's 16 dims of block
  // at % 4 of 64, as two dims of a key and two of the next one.
  __device__ __forceinline__ void load_codes(uint32_t tile_at, int at) {
    const int half = at / 4, block = at % 4;
    const uint32_t line =
        tile_at + (group * 2 + block / 2) * kChunkBytes + (half * 32 + lane) * 128;
    ptx::load_matrix_x4_transposed(codes, line + (((block % 2 * 4 + warp) ^ (lane & 7)) << 4));
  }

  // To fragments of two steps of 16 keys: two keys of each dim.
  __device__ __forceinline__ void convert_codes(uint32_t (&to)[8]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // keys 0-7, 8-15, 16-23, 24-31
      uint32_t* fragment = to + j / 2 * 4 + j % 2 * 2;
      ptx::unpack_codes(__byte_perm(codes[j], 0, 0x3120), fragment, fragment + 1);
    }
  }

  // Fragments of the first load, codes of the second.
  __device__ __forceinline__ void begin_codes(uint32_t tile_at) {
    load_codes(tile_at, 0);
    convert_codes(a[0]);
    load_codes(tile_at, 1);
  }

  __device__ __forceinline__ void rescale(int buffer) {
    const int4 any = reinterpret_cast<const int4*>(smem + L::kRescales)[buffer];
    if (!__any_sync(~0u, (any.x | any.y | any.z | any.w) != 0)) return;
    const int moved[4] = {any.x, any.y, any.z, any.w};
    const float* factors = reinterpret_cast<const float*>(smem + L::kRescale) + buffer * kWideRows;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (moved[b / 2] == 0) continue;  // factors of these 16 rows are of an earlier tile
      const float2 factor = *reinterpret_cast<const float2*>(factors + b * 8 + 2 * (lane % 4));
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        out[m][b * 4] *= factor.x;
        out[m][b * 4 + 1] *= factor.y;
        out[m][b * 4 + 2] *= factor.x;
        out[m][b * 4 + 3] *= factor.y;
      }
    }
  }

  __device__ __forceinline__ void pin_output() {
#pragma unroll
    for (int m = 0; m < 4; ++m) ptx::pin_registers(out[m]);
  }

  __device__ __forceinline__ void accumulate_tile(int tile, bool last) {
    const int buffer = tile & 1, stage = tile % L::kStages;
    const uint32_t tile_at = shared + stage * L::kStageBytes;
    // Codes are on their way before the weights are there; the last tile may have a tail that is
    // cleared until then.
    if (!last) {
      ptx::mbarrier_wait(shared + L::kFull + stage * 8, tile / L::kStages & 1);
      begin_codes(tile_at);
    }
    ptx::mbarrier_wait(shared + L::kWeightsFull + buffer * 8, tile / 2 & 1);
    if (last) begin_codes(tile_at);
    rescale(buffer);
    const uint64_t weights =
        ptx::uniform_descriptor(shared + L::kWeights + buffer * L::kWeightBytes);
    pin_output();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t(&fragments)[8] = a[i % 2];
      if (i > 0) {
        convert_codes(fragments);
        if (i < 7) load_codes(tile_at, i + 1);
      }
      if (i == 7) {  // the codes are in registers
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(shared + L::kEmpty + stage * 8);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        ptx::WgmmaHalf<kWideRows>::run(out[i % 4], fragments + step * 4,
                                       weights + (i / 4 * 2 + step) * 32 / 16, 1);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
    }
    ptx::wgmma_wait<0>();
    pin_output();
    ptx::mbarrier_arrive(shared + L::kWeightsEmpty + buffer * 8);
  }

  __device__ __forceinline__ PartSet part_set() const {
    return {static_cast<int>(blockIdx.x), p.partials, p.counters};
  }

  __device__ __forceinline__ void finish_segment(const WideTask& task, const float* totals) {
    const int slot = partial_slot(blockIdx.x, task.first_unit, task.total, task.blocks);
    write_segment<Pieces, kWideRows>(
        p, part_set(), slot, task.whole, RowRange(p, task.request), group * 4 + warp,
        [&](int b) {
          const float* of = totals + b * 8 + 2 * (lane % 4);
          const float2 inverse = *reinterpret_cast<const float2*>(of);
          const float2 log_sum = *reinterpret_cast<const float2*>(of + kWideRows);
          return RowTotals{{inverse.x, inverse.y}, {log_sum.x, log_sum.y}};
        },
        out);
    if (task.whole) return;
    const bool speaker = group == 0 && warp == 0 && lane == 0;
    if (speaker) {
      int* count = reinterpret_cast<int*>(smem + L::kSharedCount);
      SharedRequest* requests = reinterpret_cast<SharedRequest*>(smem + L::kShared);
      requests[*count] = {task.request, task.first_unit, task.units};
      ++*count;
    }
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    // Releases the stores of both warpgroups: the barrier ordered them before this.
    if (speaker) {
      ptx::add_release(part_set().counter(task.first_unit, task.total, task.blocks), 1);
    }
  }

  __device__ __forceinline__ void merge(int total, int blocks) {
    // All tiles are consumed after this, their memory is free, and the list is written.
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    const SharedRequest* requests = reinterpret_cast<const SharedRequest*>(smem + L::kShared);
    const int merges = *reinterpret_cast<const int*>(smem + L::kSharedCount);
#pragma unroll 1
    for (int i = 0; i < merges; ++i) {
      merge_request<Pieces, 9>(p, part_set(), total, blocks, requests[i],
                               RowRange(p, requests[i].request), group * 4 + warp, smem);
    }
  }

  __device__ __forceinline__ void run() {
    int tile = 0;
    for (int i = 0;; ++i) {
      const WideTask* task = reinterpret_cast<const WideTask*>(smem + L::kTasks) + (i & 1);
      ptx::mbarrier_wait(shared + L::kTaskFull + (i & 1) * 8, i / 2 & 1);
      const int tiles = __shfl_sync(~0u, task->tiles, 0);  // known to be uniform
      if (tiles < 0) {
        merge(task->total, task->blocks);
        return;
      }
      // All scores of the segment before are done: its weights are used up.
      store_query_terms<kWideRows, 8, 4>(p, RowRange(p, task->request), smem + L::kQuery,
                                         reinterpret_cast<float*>(smem + L::kRowScale),
                                         group * 4 + warp);
      ptx::mbarrier_arrive(shared + L::kQueryFull);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int j = 0; j < 32; ++j) out[m][j] = 0.f;
      }
#pragma unroll 1
      for (int done = 0; done < tiles; ++done, ++tile) accumulate_tile(tile, done + 1 == tiles);
      ptx::mbarrier_wait(shared + L::kTotalsFull + (i & 1) * 8, i / 2 & 1);
      finish_segment(*task,
                     reinterpret_cast<const float*>(smem + L::kTotals) + (i & 1) * 2 * kWideRows);
      ptx::mbarrier_arrive(shared + L::kSegmentDone + (i & 1) * 8);
    }
  }
};

__global__ void __launch_bounds__(kWideThreads, 1)
    mla_decode_code_wide_kernel(const __grid_constant__ KernelParams params,
                                const __grid_constant__ CUtensorMap page_map,
                                const __grid_constant__ CUtensorMap small_map) {
  using L = CodeWideLayout;
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
    for (int i = 0; i < L::kStages * L::kParts; ++i) {
      ptx::mbarrier_init(shared + L::kFull + i * 8, 1);
    }
    // Warps that read a tile: those that score and those of both value warpgroups.
    for (int i = 0; i < L::kStages; ++i) ptx::mbarrier_init(shared + L::kEmpty + i * 8, 12);
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(shared + L::kWeightsFull + i * 8, 4 * 32);
      ptx::mbarrier_init(shared + L::kWeightsEmpty + i * 8, 8 * 32);
      ptx::mbarrier_init(shared + L::kTaskFull + i * 8, 1);
      ptx::mbarrier_init(shared + L::kTotalsFull + i * 8, 4 * 32);
      ptx::mbarrier_init(shared + L::kSegmentDone + i * 8, 8 * 32);
    }
    ptx::mbarrier_init(shared + L::kQueryFull, 8 * 32);
    *reinterpret_cast<int*>(smem + L::kSharedCount) = 0;
    ptx::fence_mbarrier_init();
  }
  ptx::wait_for_predecessor();
  const int first = first_kv_end(params);
  EarlyPages<L::kEarlyPages> early;
  if (warp == 0) early.ask(params);
  __syncthreads();
  ptx::launch_dependents();
  if (warp < 4) {
    ptx::register_decrease<L::kCopyRegisters>();
    if (warp == 0)
      produce_keys<L>(params, &page_map, &small_map, shared, Walker(params, blockIdx.x, first),
                      early);
    if (warp == 2) prefetch_tables(params);
  } else if (warp < 8) {
    ptx::register_decrease<L::kScoreRegisters>();
    CodeScorer scorer{params, smem, shared, static_cast<int>(threadIdx.x & 127), warp & 3, lane};
    scorer.run(first);
  } else {
    ptx::register_increase<L::kValueRegisters>();
    CodeAccumulator accumulator{params, smem, shared, warp / 4 - 2, warp & 3, lane};
    accumulator.run();
  }
}

}  // namespace foresail::cuda::mla
