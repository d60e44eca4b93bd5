// The two computing warpgroups of the MLA decode kernel.
//
// Keys are the M side of both products ("swapped"), query rows the N side, so that N can be 8, 16,
// 32, 48 or 64 and few rows cost little:
//   S^T[64 keys, N]   = K[64, 576] * Q^T[576, N]     one warpgroup, taking turns tile by tile
//   O^T[512, N]      += V^T[512, 64] * P^T[64, N]    256 latent dims a warpgroup
#pragma once

#include "kernels/cuda/sm90/mla_narrow_output.cuh"
#include "kernels/cuda/sm90/wgmma.h"

namespace foresail::cuda::mla {

template <int N, typename Params>
struct Consumer {
  using L = Layout<N>;
  static constexpr int kBlocks = N / 8;  // 8-row blocks of the N side
  static constexpr int kAtOnce = kBlocks % 4 == 0 ? 4 : kBlocks % 3 == 0 ? 3 : kBlocks;

  const Params& p;
  uint8_t* smem;
  uint32_t shared;
  int group, warp, lane;  // warp: within the warpgroup
  float out[4][N / 2];    // O^T, four blocks of 64 latent dims
  float sum[kBlocks][2];  // this thread's part of the row sums
  float s[N / 2];         // S^T of one tile, then its weights

  __device__ __forceinline__ float* floats(int offset) {
    return reinterpret_cast<float*>(smem + offset);
  }

  __device__ __forceinline__ void wait_tile(int tile) {
    for (int part = 0; part < kParts; ++part) {
      ptx::mbarrier_wait(shared + L::kFull + (tile % kStages * kParts + part) * 8,
                         (tile / kStages) & 1);
    }
  }

  // S^T = K Q^T.
  __device__ __forceinline__ void score_tile(int tile, int query_stage) {
    const int stage = tile % kStages;
    const uint64_t keys = ptx::uniform_descriptor(shared + stage * kStageBytes);
    const uint64_t queries =
        ptx::uniform_descriptor(shared + L::kQuery + query_stage * L::kQueryBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::mbarrier_wait(shared + L::kFull + (stage * kParts + part) * 8, (tile / kStages) & 1);
#pragma unroll
      for (int i = 0; i < kChunks / kParts * 4; ++i) {
        const int chunk = part * (kChunks / kParts) + i / 4;
        ptx::Wgmma<N, 0>::run(s, keys + (chunk * kChunkBytes + (i % 4) * 32) / 16,
                              queries + (chunk * N * 128 + (i % 4) * 32) / 16, part + i > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
  }

  // From finished scores to weights in shared memory.
  __device__ __forceinline__ void weigh_tile(const Segment& segment, int key, int stage, bool first,
                                             int last_query) {
    const int count = min(kTile, segment.key_end - key);
    // Value rows past the end would multiply a zero weight, but may hold NaN: clear them.
    if (count < kTile) {
      // Of the last box; those behind it came as zeros.
      const int pad = (count + kSmallBox - 1) / kSmallBox * kSmallBox - count;
      for (int i = threadIdx.x & 127; i < pad * 8 * kLatentChunks; i += 128) {
        const int chunk = i / (pad * 8);
        const int rest = i - chunk * pad * 8;
        *reinterpret_cast<uint4*>(smem + stage * kStageBytes + chunk * kChunkBytes + count * 128 +
                                  rest * 16) = uint4{0, 0, 0, 0};
      }
    }
    if (key + kTile > segment.key_len - last_query || count < kTile) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int2 hidden = *reinterpret_cast<const int2*>(
            smem + L::kHidden + (b * 8 + 2 * (lane % 4)) * static_cast<int>(sizeof(int)));
        const int at = key + warp * 16 + lane / 4;
        const int limit_x = min(segment.key_end, segment.key_len - hidden.x);
        const int limit_y = min(segment.key_end, segment.key_len - hidden.y);
        if (at >= limit_x) s[b * 4] = kNegativeInfinity;
        if (at >= limit_y) s[b * 4 + 1] = kNegativeInfinity;
        if (at + 8 >= limit_x) s[b * 4 + 2] = kNegativeInfinity;
        if (at + 8 >= limit_y) s[b * 4 + 3] = kNegativeInfinity;
      }
    }

    float* reduce = floats(L::kReduce);
#pragma unroll
    for (int b = 0; b < kBlocks; b += kAtOnce) {
      float m[2 * kAtOnce];
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        const int at = (b + i / 2) * 4 + i % 2;
        m[i] = fmaxf(s[at], s[at + 2]);
      }
      combine_lanes(m, [](float x, float y) { return fmaxf(x, y); });
      if (lane < 4) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          *reinterpret_cast<float2*>(reduce + warp * N + (b + i) * 8 + 2 * lane) = {m[2 * i],
                                                                                    m[2 * i + 1]};
        }
      }
    }
    if (group == 0) {
      ptx::barrier_sync(kBarWarpgroup, 128);
    } else {
      ptx::barrier_sync(kBarWarpgroup + 1, 128);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int column = b * 8 + 2 * (lane % 4);
      float2 m{kNegativeInfinity, kNegativeInfinity};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(reduce + w * N + column);
        m = {fmaxf(m.x, other.x), fmaxf(m.y, other.y)};
      }
      // The previous tile was the other warpgroup's.
      float2 old{kNegativeInfinity, kNegativeInfinity};
      if (!first) {
        old = *reinterpret_cast<const float2*>(floats(L::kMaximum) + (1 - group) * N + column);
      }
      const float2 maximum = {fmaxf(old.x, m.x * p.scale_log2), fmaxf(old.y, m.y * p.scale_log2)};
      const float2 rescale = {weight(old.x, maximum.x), weight(old.y, maximum.y)};
      const float2 offset = {maximum.x == kNegativeInfinity ? 0.f : maximum.x,
                             maximum.y == kNegativeInfinity ? 0.f : maximum.y};
      s[b * 4] = ptx::exp2_approx(s[b * 4] * p.scale_log2 - offset.x);
      s[b * 4 + 1] = ptx::exp2_approx(s[b * 4 + 1] * p.scale_log2 - offset.y);
      s[b * 4 + 2] = ptx::exp2_approx(s[b * 4 + 2] * p.scale_log2 - offset.x);
      s[b * 4 + 3] = ptx::exp2_approx(s[b * 4 + 3] * p.scale_log2 - offset.y);
      sum[b][0] = sum[b][0] * rescale.x + s[b * 4] + s[b * 4 + 2];
      sum[b][1] = sum[b][1] * rescale.y + s[b * 4 + 1] + s[b * 4 + 3];
      if (warp == 0 && lane < 4) {
        const uint32_t offset_in_row = (group * N + column) * static_cast<uint32_t>(sizeof(float));
        ptx::store_shared_unordered(shared + L::kMaximum + offset_in_row, maximum.x, maximum.y);
        ptx::store_shared_unordered(shared + L::kRescale + offset_in_row, rescale.x, rescale.y);
      }
    }

    // Both warpgroups are done with the tile before the last, whose weights lay here: they came to
    // the barrier of the last one after it.
    const int half = (lane >> 3) & 1, line = lane & 7;
    const uint32_t weights = shared + L::kWeights + group * N * 128 + (lane >> 4) * 1024 +
                             line * 128 + (((warp * 2 + half) ^ line) << 4);
    if constexpr (kBlocks == 1) {
      ptx::store_matrix_x2_transposed(
          shared + L::kWeights + group * N * 128 + line * 128 + (((warp * 2 + half) ^ line) << 4),
          ptx::pack_bf16(s[0], s[1]), ptx::pack_bf16(s[2], s[3]));
    } else {
#pragma unroll
      for (int b = 0; b < kBlocks; b += 2) {
        ptx::store_matrix_x4_transposed(weights + b * 1024, ptx::pack_bf16(s[b * 4], s[b * 4 + 1]),
                                        ptx::pack_bf16(s[b * 4 + 2], s[b * 4 + 3]),
                                        ptx::pack_bf16(s[b * 4 + 4], s[b * 4 + 5]),
                                        ptx::pack_bf16(s[b * 4 + 6], s[b * 4 + 7]));
      }
    }
    ptx::fence_proxy_async();
  }

  __device__ __forceinline__ void accumulate_tile(int stage, bool first, bool own) {
    if (!first) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const float2 factor = *reinterpret_cast<const float2*>(
            floats(L::kRescale) + (own ? group : 1 - group) * N + b * 8 + 2 * (lane % 4));
        if (!own) {
          sum[b][0] *= factor.x;
          sum[b][1] *= factor.y;
        }
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          out[m][b * 4] *= factor.x;
          out[m][b * 4 + 1] *= factor.y;
          out[m][b * 4 + 2] *= factor.x;
          out[m][b * 4 + 3] *= factor.y;
        }
      }
    }
    const uint64_t values =
        ptx::uniform_descriptor(shared + stage * kStageBytes + group * 4 * kChunkBytes);
    const uint64_t weights =
        ptx::uniform_descriptor(shared + L::kWeights + (own ? group : 1 - group) * N * 128);
#pragma unroll
    for (int m = 0; m < 4; ++m) ptx::pin_registers(out[m]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        ptx::Wgmma<N, 1>::run(out[m], values + (m * kChunkBytes + k * 2048) / 16,
                              weights + k * 32 / 16, !first || k > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < 4; ++m) ptx::pin_registers(out[m]);
  }

  __device__ __forceinline__ const TagPlace& tag_place() const {
    return *reinterpret_cast<const TagPlace*>(smem + L::kTagPlace);
  }

  __device__ __forceinline__ TaggedSet tagged_set() const {
    return found_set(p, tag_place(), shared + L::kTagPlace);
  }

  __device__ __forceinline__ void run(Walker walker) {
    Segment segment;
    int tile = 0;
    for (int i = 0; walker.next(p, &segment); ++i) {
      const int query_stage = i % L::kQueryStages;
      const RowRange rows(p, segment.request);
      if (i == 0 || p.row_blocks > 1) {
        if (threadIdx.x < N) {
          reinterpret_cast<int*>(smem + L::kHidden)[threadIdx.x] = rows.hidden_keys(p, threadIdx.x);
        }
        ptx::barrier_sync(kBarConsumers, kConsumerThreads);
      }
      const bool empty = segment.key_begin >= segment.key_end;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) sum[b][0] = sum[b][1] = 0.f;
      if (empty) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
          for (int j = 0; j < N / 2; ++j) out[m][j] = 0.f;
        }
      }
      ptx::mbarrier_wait(shared + L::kQueryFull + query_stage * 8, (i / L::kQueryStages) & 1);
      int nth = 0;  // tile of the segment: turns must not depend on the tiles of others
      for (int key = segment.key_begin; key < segment.key_end; key += kTile, ++tile, ++nth) {
        const int stage = tile % kStages;
        const bool first = nth == 0;
        const bool own = (nth & 1) == group;
        if (own) {
          score_tile(tile, query_stage);
          weigh_tile(segment, key, stage, first, rows.last_query);
        } else {
          wait_tile(tile);
          // As many barriers as the other warpgroup passes: racecheck compares their counts.
          ptx::barrier_sync(kBarWarpgroup + group, 128);
        }
        ptx::barrier_sync(kBarWeightsReady, kConsumerThreads);
        accumulate_tile(stage, first, own);
        if (lane == 0) ptx::mbarrier_arrive(shared + L::kEmpty + stage * 8);
      }
      if (lane == 0) ptx::mbarrier_arrive(shared + L::kQueryEmpty + query_stage * 8);
      // All have read the sums of the segment before. (Where there are tiles they passed a
      // barrier.)
      if (empty) ptx::barrier_sync(kBarConsumers, kConsumerThreads);
      float maximum[kBlocks][2];
      // As the warpgroup of the last tile left them.
      load_maxima<N>(floats(L::kMaximum) + ((nth & 1) ^ 1) * N, maximum);
      finish_segment<NarrowPieces<N, false>, N>(p, tagged_set(), segment, rows, group * 4 + warp,
                                                floats(L::kTotals), sum, maximum, 1.f, out);
    }
    if (walker.unit_end == 0) return;
    merge_requests<NarrowPieces<N, false>>(p, tagged_set(), tag_place(), group * 4 + warp, smem);
  }
};

}  // namespace foresail::cuda::mla
