// The two computing warpgroups of the MLA decode kernel.
//
// Scores have keys as the M side of the product ("swapped"), query rows as the N side, so that N
// can be 8, 16 or 32 and few rows cost little. They are a warpgroup's work, which take turns:
//   S^T[64 keys, N] = K[64, 576] * Q^T[576, N]
// Values have rows as the M side, of the small products of a warp: 16 rows are all that these need,
// and a value is read from shared memory once, by the warp that holds its 64 latent dims.
//   O[N, 512]      += P[N, 64] * V[64, 512]
// Sums of weights are one product more, P * 1: no exchange between lanes or warps.
#pragma once

#include "kernels/cuda/sm90/mla_narrow_output.cuh"
#include "kernels/cuda/sm90/mla_row_output.cuh"
#include "kernels/cuda/sm90/wgmma.h"

namespace foresail::cuda::mla {

// d[16, 8] += a[16, 16] * b[16, 8] of a warp.
__device__ __forceinline__ void multiply_fragments(float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int N, typename Params>
struct Consumer {
  using L = Layout<N>;
  static constexpr int kBlocks = N / 8;          // 8-row blocks
  static constexpr int kTiles = (N + 15) / 16;   // of 16 rows; with 8 rows half of one is none
  static constexpr uint32_t kOnes = 0x3f803f80;  // two of bf16

  const Params& p;
  uint8_t* smem;
  uint32_t shared;
  int group, warp, lane;  // warp: within the warpgroup
  // Of each 16 rows: elements 0 and 1 of row lane / 4, 2 and 3 of that 8 further on.
  float out[kTiles][8][4];  // O: this warp's 64 latent dims, 8 at a time
  float sum[kTiles][4];     // of weights: every dim the same
  float s[N / 2];           // S^T of one tile, then its weights

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
        ptx::Wgmma<N>::run(s, keys + (chunk * kChunkBytes + (i % 4) * 32) / 16,
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
      ptx::fence_proxy_async();  // the next copy into their place comes after them
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
    float largest[2 * kBlocks];
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const int at = i / 2 * 4 + i % 2;
      largest[i] = fmaxf(s[at], s[at + 2]);
    }
    combine_lanes(largest, [](float x, float y) { return fmaxf(x, y); });
    if (lane < 4) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        *reinterpret_cast<float2*>(reduce + warp * N + b * 8 + 2 * lane) = {largest[2 * b],
                                                                            largest[2 * b + 1]};
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
  }

  // Weights of 16 keys (32 if N is 8) as an A operand, rows `tile` * 16 on.
  __device__ __forceinline__ void load_weights(uint32_t (&a)[4], uint32_t weights, int tile,
                                               int step) {
    const int row = N == 8 ? lane & 7 : tile * 16 + (lane & 15);
    const int unit = N == 8 ? step / 2 * 4 + (lane >> 3) : step * 2 + (lane >> 4);
    ptx::load_matrix_x4(a, weights + row * 128 + ((unit ^ (row & 7)) << 4));
  }

  __device__ __forceinline__ void accumulate_tile(int stage, bool first, bool own) {
    const int turn = own ? group : 1 - group;
    if (!first) {
      const float* factors = floats(L::kRescale) + turn * N + lane / 4;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const float factor = factors[b * 8];
        const int at = b % 2 * 2;
        sum[b / 2][at] *= factor;
#pragma unroll
        for (int v = 0; v < 8; ++v) {
          out[b / 2][v][at] *= factor;
          out[b / 2][v][at + 1] *= factor;
        }
      }
    }
    const uint32_t weights = shared + L::kWeights + turn * N * 128;
    const uint32_t values =
        shared + stage * kStageBytes + (group * 4 + warp) * kChunkBytes + (lane & 15) * 128;
    const uint32_t unit = static_cast<uint32_t>(lane) >> 4, line = lane & 7;
    // V of 16 keys: matrices of keys 0-7 and 8-15, of 8 dims and the next 8.
    const auto load_values = [&](uint32_t(&b)[4][4], int step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::load_matrix_x4_transposed(b[i], values + step * 2048 + (((i * 2 + unit) ^ line) << 4));
      }
    };
    uint32_t b[2][4][4], a[2][kTiles][4];
    const auto load = [&](int step) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (N > 8 || step % 2 == 0) load_weights(a[N == 8 ? 0 : step % 2][t], weights, t, step);
      }
      load_values(b[step % 2], step);
    };
    load(0);
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      uint32_t of[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (N == 8) {
          of[t][0] = a[0][t][step % 2 * 2];
          of[t][2] = a[0][t][step % 2 * 2 + 1];
          of[t][1] = of[t][3] = 0;
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) of[t][i] = a[step % 2][t][i];
        }
      }
      if (step + 1 < kTile / 16) load(step + 1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_fragments(sum[t], of[t], kOnes, kOnes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          multiply_fragments(out[t][2 * i], of[t], b[step % 2][i][0], b[step % 2][i][1]);
          multiply_fragments(out[t][2 * i + 1], of[t], b[step % 2][i][2], b[step % 2][i][3]);
        }
      }
    }
    __syncwarp();  // all lanes have what they read of the tile
  }

  __device__ __forceinline__ const TagPlace& tag_place() const {
    return *reinterpret_cast<const TagPlace*>(smem + L::kTagPlace);
  }

  __device__ __forceinline__ TaggedSet tagged_set() const {
    return found_set(p, tag_place(), shared + L::kTagPlace);
  }

  // The output of a segment of so many tiles (kWhole), or this block's part of it.
  template <bool kWhole>
  __device__ __forceinline__ void write(const Segment& segment, const RowRange& rows, int tiles) {
    // As the warpgroup of the last tile left them.
    const float* maxima = floats(L::kMaximum) + ((tiles & 1) ^ 1) * N + lane / 4;
    const TaggedSet set = tagged_set();
    const int slot = set.slot(p, segment);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int at = b % 2 * 2;
      write_row_block<RowPieces<N>, kWhole>(p, set, slot, rows, group * 4 + warp, b,
                                            RowTotal(sum[b / 2][at], maxima[b * 8]),
                                            [&](int v, int c) { return out[b / 2][v][at + c]; });
    }
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
      }
      // All have read the maxima of the segment before.
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[t][j] = 0.f;
#pragma unroll
          for (int v = 0; v < 8; ++v) out[t][v][j] = 0.f;
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
      if (segment.whole) {
        write<true>(segment, rows, nth);
      } else {
        write<false>(segment, rows, nth);
      }
    }
    if (walker.unit_end == 0) return;
    // Nobody reads queries any more: all have passed a barrier after the last scores.
    merge_requests<RowPieces<N>>(p, tagged_set(), tag_place(), group * 4 + warp, smem + L::kQuery);
  }
};

}  // namespace foresail::cuda::mla
