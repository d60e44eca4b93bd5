// The MLA decode kernel for an e4m3 cache, up to 64 query rows; mla_decode.cu launches it.
//
// As in the kernel for few rows, keys are the M side of both products and query rows the N side.
// Here the A operands come from registers: ldmatrix brings codes from the tile as the copy engine
// wrote it, and they become float16 exactly on the way, so that nothing is staged and the tensor
// cores read only queries and weights from shared memory. A step is 128 keys: each of the two
// warpgroups scores a tile of 64, and accumulates 256 latent dims of both.
//
// Fragments are used as they come, and the other side is permuted to match:
// - scores: a thread's four neighbouring codes stand for columns 2c, 2c + 1, 2c + 8, 2c + 9 of a
//   step of 16 dims (c = lane % 4); begin_segment stores the queries in that order.
// - values: transposed pairs of codes are two dims of one key, so rows r and r + 8 of a product
//   are dims 2r and 2r + 1 (NarrowPieces<N, true>).
#pragma once

#include "kernels/cuda/sm90/mla_narrow_output.cuh"
#include "kernels/cuda/sm90/mla_producers.cuh"
#include "kernels/cuda/sm90/wgmma.h"

namespace foresail::cuda::mla {

template <int N>
struct CodeConsumer {
  using L = CodeLayout<N>;
  static constexpr int kBlocks = N / 8;  // 8-row blocks of the N side
  static constexpr int kAtOnce = kBlocks < 4 ? kBlocks : 4;
  // Products of one group: its fragments are loaded while the group before is running.
  static constexpr int kGroup = N <= 32 ? 4 : 2;

  const KernelParams& p;
  uint8_t* smem;
  uint32_t shared;
  int group, warp, lane;  // warp: within the warpgroup
  float out[4][N / 2];    // O^T, four blocks of 64 latent dims
  float sum[kBlocks][2];  // row sums of this thread's keys
  float s[N / 2];         // S^T of this warpgroup's tile, then its weights
  uint32_t a[2][kGroup * 4];

  __device__ __forceinline__ float* floats(int offset) {
    return reinterpret_cast<float*>(smem + offset);
  }

  // Starts a group of products; the group before it is done then, and its fragments free.
  template <typename Product>
  __device__ __forceinline__ void run_group(const Product& product) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kGroup; ++i) product(i);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }

  // Codes of this warp's 16 keys for a group of steps of 16 dims, from step `first` on.
  __device__ __forceinline__ void load_keys(uint32_t (&to)[kGroup * 4], uint32_t tile_at,
                                            int first) {
    const uint32_t line = tile_at + first / 8 * kChunkBytes + (warp * 16 + (lane & 15)) * 128;
#pragma unroll
    for (int h = 0; h < kGroup / 2; ++h) {
      const int unit = first % 8 + h * 2 + (lane >> 4);
      uint32_t codes[4];  // keys 0-7, 8-15 of one step, then of the next
      ptx::load_matrix_x4(codes, line + ((unit ^ (lane & 7)) << 4));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t* fragment = to + (h * 2 + j) * 4;
        ptx::unpack_codes(codes[2 * j], fragment, fragment + 2);
        ptx::unpack_codes(codes[2 * j + 1], fragment + 1, fragment + 3);
      }
    }
  }

  // Codes of 32 keys (from 32 * half on) and this warp's 16 dims of block `block` of 64: two steps
  // of 16 keys.
  __device__ __forceinline__ void load_values(uint32_t* to, uint32_t tile_at, int half, int block) {
    const uint32_t line =
        tile_at + (group * 2 + block / 2) * kChunkBytes + (half * 32 + lane) * 128;
    uint32_t codes[4];  // keys 0-7, 8-15, 16-23, 24-31
    ptx::load_matrix_x4_transposed(codes, line + (((block % 2 * 4 + warp) ^ (lane & 7)) << 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Two dims of a key, two of the next one: to two keys of each dim.
      uint32_t* fragment = to + j / 2 * 4 + j % 2 * 2;
      ptx::unpack_codes(__byte_perm(codes[j], 0, 0x3120), fragment, fragment + 1);
    }
  }

  __device__ __forceinline__ void wait_part(int tile, int part) {
    ptx::mbarrier_wait(shared + L::kFull + (tile % L::kStages * L::kParts + part) * 8,
                       (tile / L::kStages) & 1);
  }

  __device__ __forceinline__ uint32_t tile_address(int tile) {
    return shared + tile % L::kStages * L::kStageBytes;
  }

  // S^T = K Q^T of a tile.
  __device__ __forceinline__ void score_tile(int tile) {
    const uint32_t tile_at = tile_address(tile);
    const uint64_t queries = ptx::uniform_descriptor(shared + L::kQuery);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) s[j] = 0.f;  // or they would be alive until here
#pragma unroll
    for (int first = 0; first < kKeyDim / 16; first += kGroup) {
      if (first % 8 == 0) wait_part(tile, first / 8);
      uint32_t(&fragments)[kGroup * 4] = a[first / kGroup % 2];
      load_keys(fragments, tile_at, first);
      run_group([&](int i) {
        const int step = first + i;
        ptx::WgmmaHalf<N>::run(s, fragments + i * 4,
                               queries + (step / 4 * N * 128 + step % 4 * 32) / 16, 1);
      });
    }
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
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

  // From the scores of both tiles to weights: this warpgroup's in shared memory, all sums and
  // accumulators rescaled. Both warpgroups come to the same maxima.
  // nth: the step of the segment.
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
        raised[c] = fmaxf(old, raised[c] * p.scale_log2);
        const float factor = weight(old, raised[c]);
        const float offset = raised[c] == kNegativeInfinity ? 0.f : raised[c];
        float* score = s + b * 4 + c;
        score[0] = ptx::exp2_approx(score[0] * p.scale_log2 - offset);
        score[2] = ptx::exp2_approx(score[2] * p.scale_log2 - offset);
        sum[b][c] = sum[b][c] * factor + score[0] + score[2];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          out[m][b * 4 + c] *= factor;
          out[m][b * 4 + c + 2] *= factor;
        }
      }
      if (threadIdx.x < 4) {
        *reinterpret_cast<float2*>(maxima + (nth + 1) % 2 * N + column) = {raised[0], raised[1]};
      }
    }
  }

  __device__ __forceinline__ void store_weights() {
    const int half = (lane >> 3) & 1, line = lane & 7;
    const uint32_t weights =
        shared + L::kWeights + group * N * 128 + line * 128 + (((warp * 2 + half) ^ line) << 4);
    if constexpr (kBlocks == 1) {
      ptx::store_matrix_x2_transposed(weights, ptx::pack_half(s[0], s[1]),
                                      ptx::pack_half(s[2], s[3]));
    } else {
#pragma unroll
      for (int b = 0; b < kBlocks; b += 2) {
        ptx::store_matrix_x4_transposed(
            weights + (b + (lane >> 4)) * 1024, ptx::pack_half(s[b * 4], s[b * 4 + 1]),
            ptx::pack_half(s[b * 4 + 2], s[b * 4 + 3]), ptx::pack_half(s[b * 4 + 4], s[b * 4 + 5]),
            ptx::pack_half(s[b * 4 + 6], s[b * 4 + 7]));
      }
    }
    ptx::fence_proxy_async();
  }

  // O^T += V^T P^T of a tile, the `nth` of the step.
  __device__ __forceinline__ void accumulate_tile(int tile, int nth) {
    const uint32_t tile_at = tile_address(tile);
    const uint64_t weights = ptx::uniform_descriptor(shared + L::kWeights + nth * N * 128);
    constexpr int kLoads = kGroup / 2;  // of eight: half of the keys, block of 64 dims
#pragma unroll
    for (int first = 0; first < 8; first += kLoads) {
      uint32_t(&fragments)[kGroup * 4] = a[first / kLoads % 2];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        load_values(fragments + i * 8, tile_at, (first + i) / 4, (first + i) % 4);
      }
      if (first + kLoads == 8) {  // the codes are in registers
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(shared + L::kEmpty + tile % L::kStages * 8);
      }
      run_group([&](int i) {
        const int load = first + i / 2;
        ptx::WgmmaHalf<N>::run(out[load % 4], fragments + i * 4,
                               weights + (load / 4 * 2 + i % 2) * 32 / 16, 1);
      });
    }
  }

  __device__ __forceinline__ void pin_output() {
#pragma unroll
    for (int m = 0; m < 4; ++m) ptx::pin_registers(out[m]);
  }

  // Query rows of a segment to shared memory as float16, each 16 dims in the order of load_keys,
  // and how many keys each of them does not see.
  __device__ __forceinline__ void begin_segment(const RowRange& rows) {
    constexpr int kItems = N * kKeyDim / 16;
    constexpr int kAhead = 3;
#pragma unroll 1
    for (int first = threadIdx.x; first < kItems; first += kAhead * kConsumerThreads) {
      uint4 low[kAhead], high[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int item = first + i * kConsumerThreads;
        const int row = item / (kKeyDim / 16), step = item % (kKeyDim / 16);
        low[i] = high[i] = uint4{0, 0, 0, 0};
        if (row < rows.count) {
          const uint4* from = reinterpret_cast<const uint4*>(
              p.query + static_cast<int64_t>(rows.first + row) * kKeyDim + step * 16);
          low[i] = __ldg(from);
          high[i] = __ldg(from + 1);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int item = first + i * kConsumerThreads;
        const int row = item / (kKeyDim / 16), step = item % (kKeyDim / 16);
        if (row >= N) break;
        uint8_t* line = smem + L::kQuery + step / 4 * N * 128 + row * 128;
        const int unit = step % 4 * 2;
        *reinterpret_cast<uint4*>(line + ((unit ^ (row & 7)) << 4)) = {
            ptx::half_from_bf16(low[i].x), ptx::half_from_bf16(low[i].z),
            ptx::half_from_bf16(high[i].x), ptx::half_from_bf16(high[i].z)};
        *reinterpret_cast<uint4*>(line + (((unit + 1) ^ (row & 7)) << 4)) = {
            ptx::half_from_bf16(low[i].y), ptx::half_from_bf16(low[i].w),
            ptx::half_from_bf16(high[i].y), ptx::half_from_bf16(high[i].w)};
      }
    }
    ptx::fence_proxy_async();
    if (threadIdx.x < N) {
      reinterpret_cast<int*>(smem + L::kHidden)[threadIdx.x] = rows.hidden_keys(p, threadIdx.x);
    }
  }

  __device__ __forceinline__ PartSet part_set() const {
    return {static_cast<int>(blockIdx.x), p.partials, p.counters};
  }

  __device__ __forceinline__ void run() {
    Walker walker(p, blockIdx.x, gridDim.x);
    Segment segment;
    if (threadIdx.x == 0) *reinterpret_cast<int*>(smem + L::kSharedCount) = 0;
    int tile = 0;
    while (walker.next(p, &segment)) {
      begin_segment(RowRange(p, segment.request));
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
        if (group < tiles) store_weights();
        ptx::barrier_sync(kBarWeightsReady, kConsumerThreads);
        pin_output();
#pragma unroll 1
        for (int nth = 0; nth < tiles; ++nth, ++tile) {
          if (nth != group) {
#pragma unroll
            for (int part = 0; part < 4; ++part) wait_part(tile, part);
          }
          accumulate_tile(tile, nth);
        }
        ptx::wgmma_wait<0>();
        pin_output();
      }
      asm volatile("" : "+r"(segment.request));  // find the rows again, not keep them in registers
      note_shared_request(smem + L::kShared, smem + L::kSharedCount, segment);
      float maximum[kBlocks][2];
      load_maxima<N>(floats(L::kMaximum) + step % 2 * N, maximum);
      finish_segment<NarrowPieces<N, true>, N>(p, part_set(), walker, segment,
                                               RowRange(p, segment.request), group * 4 + warp,
                                               floats(L::kReduce), sum, maximum, out);
      // The next segment's queries, masks and sums take the place of this one's.
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    }
    if (walker.unit_end == 0) return;
    merge_requests<NarrowPieces<N, true>>(p, part_set(), walker, group * 4 + warp, smem,
                                          smem + L::kShared, smem + L::kSharedCount);
  }
};

template <int N>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_code_kernel(const __grid_constant__ CUtensorMap page_map,
                           const __grid_constant__ CUtensorMap small_map,
                           const __grid_constant__ KernelParams params) {
  using L = CodeLayout<N>;
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t shared = ptx::shared_address(smem);
  const int warp = threadIdx.x / 32;
  if (warp == 8 && (threadIdx.x & 31) == 0) {
    if ((shared & 1023) != 0) __trap();  // the swizzle is a function of the address
    ptx::prefetch_l2(params.kv_end);     // all that follows waits for the lengths
    ptx::prefetch_tensor_map(&page_map);
    ptx::prefetch_tensor_map(&small_map);
    for (int i = 0; i < L::kStages * L::kParts; ++i) {
      ptx::mbarrier_init(shared + L::kFull + i * 8, 1);
    }
    for (int i = 0; i < L::kStages; ++i) ptx::mbarrier_init(shared + L::kEmpty + i * 8, 8);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::launch_dependents();
  ptx::wait_for_predecessor();
  if (warp >= 8) {
    ptx::register_decrease<L::kProducerRegisters>();
    if (warp == 8) produce_keys<L>(params, &page_map, &small_map, shared);
    if (warp == 10) prefetch_tables(params);
  } else {
    ptx::register_increase<L::kConsumerRegisters>();
    CodeConsumer<N> consumer{params,   smem,     shared,
                             warp / 4, warp & 3, static_cast<int>(threadIdx.x & 31)};
    consumer.run();
  }
}

}  // namespace foresail::cuda::mla
