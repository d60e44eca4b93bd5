// The MLA decode kernel for an e4m3 cache, up to 32 query rows; mla_decode.cu launches it.
//
// As in the kernel for few rows, keys are the M side of both products and query rows the N side.
// Both products are of e4m3 codes. A query row, and a row of weights, is the sum of two terms of
// e4m3 each (the second is what the first leaves over), which are two columns of a product: 8 bits
// of mantissa, and a product of twice the columns costs no more. A step is 128 keys: each of two
// warpgroups scores a tile of 64 of them, and accumulates 256 latent dims of both.
//
// These products add up with about 14 bits. So at most 128 dims or 128 keys are added up by the
// tensor cores, and the rest in registers, where accumulators are rescaled anyway.
//
// V^T comes from registers: transposed ldmatrix yields two dims of a key, and one byte permutation
// a register makes them four keys of a dim. What follows from it: rows r and r + 8 of a product are
// dims 2r and 2r + 1 (NarrowPieces<N>), and 16 keys stand in the order 0, 8, 1, 9, ...
#pragma once

#include "kernels/cuda/sm90/mla_code_query.cuh"
#include "kernels/cuda/sm90/mla_narrow_output.cuh"
#include "kernels/cuda/sm90/mla_producers.cuh"
#include "kernels/cuda/sm90/wgmma.h"
#include "kernels/cuda/sm90/wgmma_codes.h"

namespace foresail::cuda::mla {

template <int N, typename Params>
struct CodeConsumer {
  using L = CodeLayout<N>;
  using Products = ptx::WgmmaCodes<L::kTerms>;
  static constexpr int kBlocks = N / 8;  // 8-row blocks of the N side
  static constexpr int kAtOnce = kBlocks < 4 ? kBlocks : 4;
  // Weights of at most 1 fill the range of e4m3; second terms are stored larger by kSecondScale.
  static constexpr float kWeightScale = 256.f;
  static constexpr float kSecondScale = 16.f;

  const Params& p;
  uint8_t* smem;
  uint32_t shared;
  int group, warp, lane;     // warp: within the warpgroup
  float out[4][N / 2];       // O^T, four blocks of 64 latent dims
  float sum[kBlocks][2];     // row sums of this thread's keys
  float s[N / 2];            // S^T of this warpgroup's tile, then its weights
  float factor[kBlocks][2];  // what the step rescales accumulators by
  float part[2][N];          // of products in flight, and of those before: first and second terms
  uint32_t a[2][16];         // V^T of 128 keys and 64 dims

  __device__ __forceinline__ float* floats(int offset) {
    return reinterpret_cast<float*>(smem + offset);
  }

  __device__ __forceinline__ void wait_part(int tile, int part_of_tile) {
    ptx::mbarrier_wait(shared + L::kFull + (tile % L::kStages * L::kParts + part_of_tile) * 8,
                       (tile / L::kStages) & 1);
  }

  __device__ __forceinline__ uint32_t tile_address(int tile) {
    return shared + tile % L::kStages * L::kStageBytes;
  }

  // S^T = K Q^T of a tile.
  __device__ __forceinline__ void score_tile(int tile) {
    const uint64_t keys = ptx::uniform_descriptor(tile_address(tile));
    const uint64_t queries = ptx::uniform_descriptor(shared + L::kQuery);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) s[j] = 0.f;
    const auto add = [&](float(&of)[N]) {
      ptx::pin_registers(of);
#pragma unroll
      for (int j = 0; j < N / 2; ++j) s[j] += of[j] + of[N / 2 + j];
    };
#pragma unroll
    for (int chunk = 0; chunk < L::kTileChunks; ++chunk) {
      wait_part(tile, chunk);
      ptx::pin_registers(part[chunk % 2]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < (chunk < kLatent / 128 ? 4 : 2); ++i) {
        Products::run(part[chunk % 2], keys + (chunk * kChunkBytes + i * 32) / 16,
                      queries + (chunk * L::kTerms * 128 + i * 32) / 16, i > 0);
      }
      ptx::wgmma_commit();
      if (chunk > 0) {
        ptx::wgmma_wait<1>();
        add(part[(chunk - 1) % 2]);
      }
    }
    ptx::wgmma_wait<0>();
    add(part[(L::kTileChunks - 1) % 2]);
  }

  // Values past the end would multiply a zero weight, but may be NaN. Only this warp reads these
  // keys' scores, so that none of them is still to be read.
  __device__ __forceinline__ void clear_tail(int tile, int count) {
    uint8_t* at =
        smem + tile % L::kStages * L::kStageBytes + lane / 8 * kChunkBytes + lane % 8 * 16;
    for (int row = max(count, warp * 16); row < warp * 16 + 16; ++row) {
      *reinterpret_cast<uint4*>(at + row * 128) = uint4{0, 0, 0, 0};
    }
  }

  __device__ __forceinline__ void mask_tile(const Segment& segment, int key) {
    const int at = key + warp * 16 + lane / 4;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int2 hidden = *reinterpret_cast<const int2*>(
          smem + L::kHidden + (b * 8 + 2 * (lane % 4)) * static_cast<int>(sizeof(int)));
      const int limit_x = min(segment.key_end, segment.key_len - hidden.x);
      const int limit_y = min(segment.key_end, segment.key_len - hidden.y);
      if (at >= limit_x) s[b * 4] = kNegativeInfinity;
      if (at >= limit_y) s[b * 4 + 1] = kNegativeInfinity;
      if (at + 8 >= limit_x) s[b * 4 + 2] = kNegativeInfinity;
      if (at + 8 >= limit_y) s[b * 4 + 3] = kNegativeInfinity;
    }
  }

  // From the scores of both tiles to weights, and by how much accumulators are to be rescaled. Both
  // warpgroups come to the same maxima. nth: the step of the segment.
  __device__ __forceinline__ void weigh_step(int nth) {
    float* maxima = floats(L::kMaximum);  // of all keys of the segment so far, base 2
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
          *reinterpret_cast<float2*>(reduce + (group * 4 + warp) * N + (b + i) * 8 + 2 * lane) = {
              m[2 * i], m[2 * i + 1]};
        }
      }
    }
    ptx::barrier_sync(kBarMaxima, kConsumerThreads);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int column = b * 8 + 2 * (lane % 4);
      float2 before{kNegativeInfinity, kNegativeInfinity};
      if (nth > 0) before = *reinterpret_cast<const float2*>(maxima + nth % 2 * N + column);
      const float2 scale = *reinterpret_cast<const float2*>(floats(L::kRowScale) + column);
      float raised[2] = {kNegativeInfinity, kNegativeInfinity};
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(reduce + w * N + column);
        raised[0] = fmaxf(raised[0], other.x);
        raised[1] = fmaxf(raised[1], other.y);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float old = c == 0 ? before.x : before.y;
        const float to_log2 = c == 0 ? scale.x : scale.y;
        raised[c] = fmaxf(old, raised[c] * to_log2);
        factor[b][c] = weight(old, raised[c]);
        const float offset = raised[c] == kNegativeInfinity ? 0.f : raised[c];
        float* score = s + b * 4 + c;
        score[0] = ptx::exp2_approx(score[0] * to_log2 - offset);
        score[2] = ptx::exp2_approx(score[2] * to_log2 - offset);
        sum[b][c] = sum[b][c] * factor[b][c] + score[0] + score[2];
      }
      if (threadIdx.x < 4) {
        *reinterpret_cast<float2*>(maxima + (nth + 1) % 2 * N + column) = {raised[0], raised[1]};
      }
    }
  }

  // Both terms of the weights, as the B operand [terms, 128 keys]. A 16-bit element of the matrices
  // that are stored is keys k and k + 8 of a row.
  __device__ __forceinline__ void store_weights() {
    uint32_t first[kBlocks], second[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t code[2], rest[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float low = s[b * 4 + c] * kWeightScale, high = s[b * 4 + c + 2] * kWeightScale;
        code[c] = ptx::pack_codes(low, high);
        const float2 rounded = ptx::unpack_code_pair(code[c]);
        rest[c] =
            ptx::pack_codes((low - rounded.x) * kSecondScale, (high - rounded.y) * kSecondScale);
      }
      first[b] = code[0] | code[1] << 16;
      second[b] = rest[0] | rest[1] << 16;
    }
    const int line = lane & 7, matrix = lane >> 3;
    const uint32_t at = shared + L::kWeights + line * 128 + (((group * 4 + warp) ^ line) << 4);
    if constexpr (kBlocks == 1) {
      ptx::store_matrix_x2_transposed(at + (matrix & 1) * N * 128, first[0], second[0]);
    } else {
#pragma unroll
      for (int b = 0; b < kBlocks; b += 2) {
        ptx::store_matrix_x4_transposed(at + ((matrix >> 1) * N + (b + (matrix & 1)) * 8) * 128,
                                        first[b], first[b + 1], second[b], second[b + 1]);
      }
    }
    ptx::fence_proxy_async();
  }

  // Codes of 32 keys (from 32 * half on) and this warp's 16 dims of block `block` of 64.
  __device__ __forceinline__ void load_values(uint32_t* to, uint32_t tile_at, int half, int block) {
    const uint32_t line =
        tile_at + (group * 2 + block / 2) * kChunkBytes + (half * 32 + lane) * 128;
    uint32_t codes[4];  // keys 0-7, 8-15, 16-23, 24-31: two dims of a key, two of the next one
    ptx::load_matrix_x4_transposed(codes, line + (((block % 2 * 4 + warp) ^ (lane & 7)) << 4));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      to[j * 2] = __byte_perm(codes[j * 2], codes[j * 2 + 1], 0x6240);
      to[j * 2 + 1] = __byte_perm(codes[j * 2], codes[j * 2 + 1], 0x7351);
    }
  }

  // O^T += V^T P^T of a step: `tile` and, if there are two, the next one. With one tile its codes
  // meet the other half's weights, which are zero.
  __device__ __forceinline__ void accumulate_step(int tile, int tiles) {
    const uint32_t tile_at[2] = {tile_address(tile), tile_address(tile + tiles - 1)};
    const uint64_t weights = ptx::uniform_descriptor(shared + L::kWeights);
    const auto add = [&](int block) {
      float(&of)[N] = part[block % 2];
      ptx::pin_registers(of);
#pragma unroll
      for (int j = 0; j < N / 2; ++j) {
        out[block][j] = fmaf(out[block][j], factor[j / 4][j % 2],
                             fmaf(of[N / 2 + j], 1.f / kSecondScale, of[j]));
      }
    };
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      uint32_t(&fragments)[16] = a[block % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_values(fragments + i * 4, tile_at[i / 2], i % 2, block);
      if (block == 3) {  // the codes are in registers
        __syncwarp();
        if (lane < tiles) {
          ptx::mbarrier_arrive(shared + L::kEmpty + (tile + lane) % L::kStages * 8);
        }
      }
      ptx::pin_registers(part[block % 2]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Products::run(part[block % 2], fragments + i * 4, weights + i * 32 / 16, i > 0);
      }
      ptx::wgmma_commit();
      if (block > 0) {
        ptx::wgmma_wait<1>();
        add(block - 1);
      }
    }
    ptx::wgmma_wait<0>();
    add(3);
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
    while (walker.next(p, &segment)) {
      {
        const RowRange rows(p, segment.request);
        store_query_terms<N, 8, N / 8>(p, rows, smem + L::kQuery, floats(L::kRowScale),
                                       group * 4 + warp);
        if (threadIdx.x < N) {
          reinterpret_cast<int*>(smem + L::kHidden)[threadIdx.x] = rows.hidden_keys(p, threadIdx.x);
        }
      }
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) sum[b][0] = sum[b][1] = 0.f;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int j = 0; j < N / 2; ++j) out[m][j] = 0.f;
      }
      int step = 0;
#pragma unroll 1
      for (int first = segment.key_begin; first < segment.key_end; first += 2 * kTile, ++step) {
        const int tiles = segment.key_end - first > kTile ? 2 : 1;
        if (group < tiles) {
          const int key = first + group * kTile;
          const int count = min(kTile, segment.key_end - key);
          score_tile(tile + group);
          if (key + kTile > segment.key_len - (p.q_len - 1) || count < kTile) {
            mask_tile(segment, key);
            clear_tail(tile + group, count);
          }
        } else {
#pragma unroll
          for (int j = 0; j < N / 2; ++j) s[j] = kNegativeInfinity;
        }
        weigh_step(step);
        store_weights();
        ptx::barrier_sync(kBarWeightsReady, kConsumerThreads);
        // The other warpgroup has waited for its tile, but this one reads it too.
        const int other = tile + (tiles - 1) * (1 - group);
#pragma unroll
        for (int i = 0; i < kLatent / 128; ++i) wait_part(other, i);
        accumulate_step(tile, tiles);
        tile += tiles;
      }
      asm volatile("" : "+r"(segment.request));  // find the rows again, not keep them in registers
      float maximum[kBlocks][2];
      load_maxima<N>(floats(L::kMaximum) + step % 2 * N, maximum);
      finish_segment<NarrowPieces<N>, N>(p, tagged_set(), segment, RowRange(p, segment.request),
                                         group * 4 + warp, floats(L::kReduce), sum, maximum,
                                         p.cache_scale / kWeightScale, out);
      // The next segment's queries, masks and sums take the place of this one's.
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    }
    if (walker.unit_end == 0) return;
    merge_requests<NarrowPieces<N>>(p, tagged_set(), tag_place(), group * 4 + warp, smem);
  }
};

template <int N, typename Params>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_code_kernel(const __grid_constant__ Params params,
                           const __grid_constant__ CUtensorMap page_map,
                           const __grid_constant__ CUtensorMap small_map) {
  using L = CodeLayout<N>;
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t shared = ptx::shared_address(smem);
  const int warp = threadIdx.x / 32;
  if (warp == 8 && (threadIdx.x & 31) == 0) {
    if ((shared & 1023) != 0) __trap();  // the swizzle is a function of the address
    ptx::prefetch_tensor_map(&page_map);
    ptx::prefetch_tensor_map(&small_map);
  }
  if (warp == 9 && (threadIdx.x & 31) == 0) {
    for (int i = 0; i < L::kStages * L::kParts; ++i) {
      ptx::mbarrier_init(shared + L::kFull + i * 8, 1);
    }
    for (int i = 0; i < L::kStages; ++i) ptx::mbarrier_init(shared + L::kEmpty + i * 8, 8);
    ptx::mbarrier_init(shared + L::kTagPlace + offsetof(TagPlace, full), 1);
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
    if (warp == 11) {
      find_tag(params, reinterpret_cast<TagPlace*>(smem + L::kTagPlace),
               shared + L::kTagPlace + offsetof(TagPlace, full), walker);
    }
  } else {
    ptx::register_increase<L::kConsumerRegisters>();
    CodeConsumer<N, Params> consumer{params,   smem,     shared,
                                     warp / 4, warp & 3, static_cast<int>(threadIdx.x & 31)};
    if constexpr (N < 32) {
      consumer.run(walker);
    } else {
      consumer.run(Walker(params, blockIdx.x, first));  // kept since then, it would cost spills
    }
  }
}

}  // namespace foresail::cuda::mla
