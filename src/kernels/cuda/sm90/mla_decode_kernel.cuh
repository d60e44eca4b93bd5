// The MLA decode kernel itself; mla_decode.cu launches it. docs/mla-decode.md tells the design.
//
// One block per SM, 384 threads: two consumer warpgroups and one producer warpgroup. Keys are the
// M side of both products ("swapped"), query rows the N side, so that N can be 8, 16, 32, 48 or 64
// and few rows cost little:
//   S^T[64 keys, N]   = K[64, 576] * Q^T[576, N]     one warpgroup, taking turns tile by tile
//   O^T[512, N]      += V^T[512, 64] * P^T[64, N]    256 latent dims a warpgroup
// A tile is 64 keys: the M of wgmma. Two tiles of 72 KB are in flight; 26 KB an SM would cover
// the latency of device memory at full rate.
#pragma once

#include "src/kernels/cuda/mla_schedule.h"
#include "src/kernels/cuda/sm90/ptx.h"
#include "src/kernels/cuda/sm90/wgmma.h"

namespace foresail::cuda::mla {

inline constexpr int kLatent = 512;
inline constexpr int kKeyDim = 576;
inline constexpr int kTile = 64;             // keys a tile
inline constexpr int kChunks = kKeyDim / 64; // 128-byte wide column chunks of a key
inline constexpr int kLatentChunks = kLatent / 64;
inline constexpr int kStages = 2;
inline constexpr int kParts = 3;             // a tile lands in three parts of three chunks
inline constexpr int kChunkBytes = kTile * 128;
inline constexpr int kStageBytes = kChunks * kChunkBytes;
inline constexpr int kConsumerThreads = 256;
inline constexpr int kThreads = 384;
inline constexpr int kSmallBox = 16;         // rows of the small tensor box
inline constexpr float kNegativeInfinity = -__builtin_huge_valf();

// Named barriers. 0 is __syncthreads.
enum : int { kBarWarpgroup = 1, kBarWeightsReady = 3, kBarWeightsFree = 4, kBarConsumers = 5 };

struct KernelParams {
  const int32_t* block_table;
  const int32_t* slots;
  const int32_t* kv_end;
  __nv_bfloat16* output;
  float* lse;
  int* counters;     // [batch * row_blocks] arrivals of a shared request, zero between calls
  float4* partials;  // [2 * blocks, N * 128] accumulators in fragment order
  float2* weights;   // [2 * blocks, N] running maximum (log2 units) and sum
  int kv_end_add;
  int batch;
  int q_len;
  int num_heads;
  int rows;           // q_len * num_heads
  int row_blocks;     // pieces the rows are cut into, each a request of its own to the schedule
  int rows_per_block; // <= N
  int page_log2;      // log2 of page_size
  int max_pages;
  int pool_rows;      // num_pages * page_size: first row past the pool
  int unit_log2;      // 0: chosen from the lengths
  float scale_log2;   // softmax scale * log2(e)
};

template <int N>
struct Layout {
  static constexpr int kQueryStages = N <= 32 ? 2 : 1;
  static constexpr int kQueryBytes = kChunks * N * 128;
  static constexpr int kQuery = kStages * kStageBytes;
  static constexpr int kWeights = kQuery + kQueryStages * kQueryBytes;  // P^T, [N, 64 keys] bf16
  static constexpr int kReduce = kWeights + N * 128;                    // [8 warps][N] float
  static constexpr int kMaximum = kReduce + 8 * N * 4;                  // [N] float
  static constexpr int kRescale = kMaximum + N * 4;  // [warpgroup whose turn it is][N] float
  static constexpr int kBarriers = kRescale + 2 * N * 4;
  static constexpr int kFull = kBarriers;  // [kStages][kParts]
  static constexpr int kEmpty = kFull + kStages * kParts * 8;
  static constexpr int kQueryFull = kEmpty + kStages * 8;
  static constexpr int kQueryEmpty = kQueryFull + kQueryStages * 8;
  static constexpr int kShared = kQueryEmpty + kQueryStages * 8;  // SharedRequest [2]
  static constexpr int kTotal = kShared + 2 * 16;
  static_assert(kTotal <= 227 * 1024);
};

struct Segment {
  int request;  // virtual: request * row_blocks + row block
  int first_unit;
  int units;
  int key_len;
  int key_begin;
  int key_end;
  bool whole;
};

// A request that several blocks work on, as its merge needs it.
struct alignas(16) SharedRequest {
  int request;
  int first_unit;
  int units;
};

__device__ __forceinline__ int key_len_of(const KernelParams& p, int request) {
  if (p.row_blocks == 1) return visible_keys(__ldg(p.kv_end + request), p.kv_end_add);
  const int real = request / p.row_blocks;
  const int last_row = min(p.rows, (request - real * p.row_blocks + 1) * p.rows_per_block) - 1;
  const int hidden = p.q_len - 1 - last_row / p.num_heads;
  return visible_keys(__ldg(p.kv_end + real), p.kv_end_add - hidden);
}

// Walks the segments of this block's share; every warp keeps its own copy in registers.
struct Walker {
  int unit_log2;
  int total;
  int blocks;
  int unit;
  int unit_end;
  int request;
  int first_unit;

  __device__ __forceinline__ explicit Walker(const KernelParams& p) {
    const int lane = threadIdx.x & 31;
    const int requests = p.batch * p.row_blocks;
    unit_log2 = p.unit_log2;
    int at_64 = 0, at_32 = 0, at_16 = 0;
    for (int i = lane; i < requests; i += 32) {
      const int key_len = key_len_of(p, i);
      at_64 += unit_count(key_len, unit_log2 > 0 ? unit_log2 : 6);
      at_32 += unit_count(key_len, 5);
      at_16 += unit_count(key_len, 4);
    }
    at_64 = __reduce_add_sync(~0u, at_64);
    total = at_64;
    if (unit_log2 == 0) {
      at_32 = __reduce_add_sync(~0u, at_32);
      at_16 = __reduce_add_sync(~0u, at_16);
      unit_log2 = choose_unit_log2(at_64, at_32, gridDim.x);
      total = unit_log2 == 6 ? at_64 : unit_log2 == 5 ? at_32 : at_16;
    }
    blocks = blocks_used(total, gridDim.x);
    const int block = blockIdx.x;
    unit = block < blocks ? cut_begin(block, total, blocks) : 0;
    unit_end = block < blocks ? cut_begin(block + 1, total, blocks) : 0;
    request = 0;
    first_unit = 0;
    if (unit == 0) return;
    // Prefix sums over 32 requests at a time until one of them holds this block's first unit.
    int before = 0;
    for (int base = 0; base < requests; base += 32) {
      const int i = base + lane;
      const int own = i < requests ? unit_count(key_len_of(p, i), unit_log2) : 0;
      int inclusive = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, inclusive, step);
        if (lane >= step) inclusive += other;
      }
      const unsigned holds = __ballot_sync(~0u, before + inclusive > unit);
      if (holds != 0) {
        const int source = __ffs(holds) - 1;
        request = base + source;
        first_unit = before + __shfl_sync(~0u, inclusive - own, source);
        return;
      }
      before += __shfl_sync(~0u, inclusive, 31);
    }
  }

  __device__ __forceinline__ bool next(const KernelParams& p, Segment* segment) {
    if (unit >= unit_end) return false;
    segment->request = request;
    segment->first_unit = first_unit;
    segment->key_len = key_len_of(p, request);
    segment->units = unit_count(segment->key_len, unit_log2);
    const int request_end = first_unit + segment->units;
    const int end = min(request_end, unit_end);
    segment->key_begin = (unit - first_unit) << unit_log2;
    segment->key_end = min(segment->key_len, (end - first_unit) << unit_log2);
    segment->whole = unit == first_unit && end == request_end;
    unit = end;
    if (end == request_end) {
      first_unit = request_end;
      ++request;
    }
    return true;
  }
};

// ---- producers -------------------------------------------------------------------------------

// One warp streams the key tiles of all segments. A full tile inside the pages moves as boxes of
// min(page, 64) rows; a tail moves as boxes of 16 rows, of which those past the end are aimed past
// the pool so that the copy engine fills zeros without reading memory.
template <int N>
__device__ __forceinline__ void produce_keys(const KernelParams& p, const CUtensorMap* page_map,
                                             const CUtensorMap* small_map, uint32_t shared) {
  using L = Layout<N>;
  const int lane = threadIdx.x & 31;
  const uint64_t policy = ptx::evict_first_policy();
  Walker walker(p);
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
// hold up the keys. Rows past the request's own are other rows or zeros: their columns are unused.
template <int N>
__device__ __forceinline__ void produce_queries(const KernelParams& p, const CUtensorMap* map,
                                                uint32_t shared) {
  using L = Layout<N>;
  const int lane = threadIdx.x & 31;
  Walker walker(p);
  Segment segment;
  for (int i = 0; walker.next(p, &segment); ++i) {
    const int stage = i % L::kQueryStages;
    const int real = segment.request / p.row_blocks;
    const int row = real * p.rows + (segment.request - real * p.row_blocks) * p.rows_per_block;
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

// ---- consumers -------------------------------------------------------------------------------

// Writes rows [8 * block, +8) x 16 latent dims of a request: `value` is one warp's fragment of O^T
// (thread: dims lane / 4 and + 8, rows 2 * (lane % 4) and + 1), already normalised.
__device__ __forceinline__ void write_output(const KernelParams& p, int request, int row_block,
                                             int dim, float4 value) {
  const int lane = threadIdx.x & 31;
  const uint32_t low = ptx::transpose_matrix(ptx::pack_bf16(value.x, value.y));
  const uint32_t high = ptx::transpose_matrix(ptx::pack_bf16(value.z, value.w));
  const int real = request / p.row_blocks;
  const int row_in_block = row_block * 8 + lane / 4;
  const int row = (request - real * p.row_blocks) * p.rows_per_block + row_in_block;
  if (row_in_block >= p.rows_per_block || row >= p.rows) return;
  __nv_bfloat16* out =
      p.output + (static_cast<int64_t>(real) * p.rows + row) * kLatent + dim + 2 * (lane % 4);
  *reinterpret_cast<uint32_t*>(out) = low;
  *reinterpret_cast<uint32_t*>(out + 8) = high;
}

__device__ __forceinline__ void write_lse(const KernelParams& p, int request, int row_in_block,
                                          float maximum, float sum) {
  const int real = request / p.row_blocks;
  const int row = (request - real * p.row_blocks) * p.rows_per_block + row_in_block;
  if (row_in_block >= p.rows_per_block || row >= p.rows) return;
  constexpr float kLn2 = 0.6931471805599453f;
  p.lse[static_cast<int64_t>(real) * p.rows + row] =
      sum > 0.f ? (maximum + __log2f(sum)) * kLn2 : kNegativeInfinity;
}

// exp2(value - maximum) for a running maximum that may still be -infinity.
__device__ __forceinline__ float weight(float value, float maximum) {
  return maximum == kNegativeInfinity ? 0.f : ptx::exp2_approx(value - maximum);
}

struct Merged {
  float4 value{0.f, 0.f, 0.f, 0.f};
  float2 maximum{kNegativeInfinity, kNegativeInfinity};  // of the thread's two rows
  float2 sum{0.f, 0.f};

  __device__ __forceinline__ void add(float4 other, float2 other_max, float2 other_sum) {
    const float max_x = fmaxf(maximum.x, other_max.x);
    const float max_y = fmaxf(maximum.y, other_max.y);
    const float keep_x = weight(maximum.x, max_x), keep_y = weight(maximum.y, max_y);
    const float take_x = weight(other_max.x, max_x), take_y = weight(other_max.y, max_y);
    value.x = value.x * keep_x + other.x * take_x;
    value.y = value.y * keep_y + other.y * take_y;
    value.z = value.z * keep_x + other.z * take_x;
    value.w = value.w * keep_y + other.w * take_y;
    sum.x = sum.x * keep_x + other_sum.x * take_x;
    sum.y = sum.y * keep_y + other_sum.y * take_y;
    maximum = {max_x, max_y};
  }
};

// Every block that worked on a shared request merges its part of the output: the accumulators are
// N/8 * 32 units of one warp fragment (8 rows x 16 dims, 512 bytes), dealt out over the blocks.
// Called once per shared request after all of the block's own partial results are published, so
// no block ever waits for one that waits for it; all blocks are resident (cooperative launch).
template <int N>
__device__ __forceinline__ void merge_request(const KernelParams& p, const Walker& walker,
                                              const SharedRequest& segment, float4* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const SplitGroup group =
      split_group(segment.first_unit, segment.units, walker.total, walker.blocks);
  const int index = blockIdx.x - group.first_block;
  if (threadIdx.x == 0) {
    int* counter = p.counters + segment.request;
    while (ptx::load_acquire(counter) < group.block_count) {
    }
    // The second half of the count says who has passed; the last one leaves zero behind.
    if (atomicAdd(counter, 1) == 2 * group.block_count - 1) *counter = 0;
  }
  ptx::barrier_sync(kBarConsumers, kConsumerThreads);

  constexpr int kUnits = N / 8 * 32;
  // Warps a unit: enough that all warps of the group have work.
  int team = 1;
  while (team < 8 && 2 * team * kUnits <= group.block_count * 8) team *= 2;
  const int teams = 8 / team;
  const int member = warp % team;
  for (int base = index * teams; base < kUnits; base += group.block_count * teams) {
    const int unit = base + warp / team;
    const bool active = unit < kUnits;
    const int unit_warp = unit & 7;
    const int row_block = (unit / 8) % (N / 8);
    Merged merged;
    if (active) {
      constexpr int kBatch = 8;  // loads in flight a thread
      for (int i = member; i < group.block_count; i += team * kBatch) {
        float4 value[kBatch], weights[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int other = i + j * team;
          if (other < group.block_count) {
            const int slot = partial_slot(group.first_block + other, segment.first_unit,
                                          walker.total, walker.blocks);
            value[j] = __ldcg(p.partials + static_cast<int64_t>(slot) * (N * 128) + unit * 32 + lane);
            weights[j] = __ldcg(reinterpret_cast<const float4*>(p.weights + slot * N +
                                                                row_block * 8 + 2 * (lane % 4)));
          } else {
            value[j] = {0.f, 0.f, 0.f, 0.f};
            weights[j] = {kNegativeInfinity, 0.f, kNegativeInfinity, 0.f};
          }
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          merged.add(value[j], {weights[j].x, weights[j].z}, {weights[j].y, weights[j].w});
        }
      }
    }
    if (team > 1) {
      scratch[(warp * 32 + lane) * 2] = merged.value;
      scratch[(warp * 32 + lane) * 2 + 1] = {merged.maximum.x, merged.maximum.y, merged.sum.x,
                                             merged.sum.y};
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
      if (member == 0) {
        for (int j = 1; j < team; ++j) {
          const float4 value = scratch[((warp + j) * 32 + lane) * 2];
          const float4 other = scratch[((warp + j) * 32 + lane) * 2 + 1];
          merged.add(value, {other.x, other.y}, {other.z, other.w});
        }
      }
      ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    }
    if (active && member == 0) {
      const float inverse_x = merged.sum.x > 0.f ? 1.f / merged.sum.x : 0.f;
      const float inverse_y = merged.sum.y > 0.f ? 1.f / merged.sum.y : 0.f;
      const int dim_block = unit / (8 * (N / 8));
      const int dim = 256 * (unit_warp / 4) + 64 * dim_block + 16 * (unit_warp & 3);
      write_output(p, segment.request, row_block, dim,
                   {merged.value.x * inverse_x, merged.value.y * inverse_y,
                    merged.value.z * inverse_x, merged.value.w * inverse_y});
      if (p.lse != nullptr && dim == 0 && lane < 4) {
        write_lse(p, segment.request, row_block * 8 + 2 * lane, merged.maximum.x, merged.sum.x);
        write_lse(p, segment.request, row_block * 8 + 2 * lane + 1, merged.maximum.y, merged.sum.y);
      }
    }
  }
}

// Number of keys that row `column` of the block sees.
__device__ __forceinline__ int row_limit(const KernelParams& p, int base_row, int column,
                                         int last_query, int key_len) {
  const int query = min((base_row + column) / p.num_heads, last_query);
  return key_len - (last_query - query);
}

// Maximum over the eight lanes that hold the same columns.
__device__ __forceinline__ float lane_maximum(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 4));
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 8));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 16));
}

template <int N>
struct Consumer {
  using L = Layout<N>;
  static constexpr int kBlocks = N / 8;  // 8-row blocks of the N side

  const KernelParams& p;
  uint8_t* smem;
  uint32_t shared;
  int group, warp, lane;   // warp: within the warpgroup
  float out[4][N / 2];     // O^T, four blocks of 64 latent dims
  float sum[kBlocks][2];   // this thread's part of the row sums

  __device__ __forceinline__ float* floats(int offset) {
    return reinterpret_cast<float*>(smem + offset);
  }

  // S^T of one tile, softmax weights to shared memory. Turn-taking is by the caller.
  __device__ __forceinline__ void score_tile(const Segment& segment, int key, int stage, int parity,
                                             int query_stage, bool first, int base_row,
                                             int last_query) {
    float s[N / 2];
    const uint64_t keys = ptx::operand_descriptor(shared + stage * kStageBytes);
    const uint64_t queries =
        ptx::operand_descriptor(shared + L::kQuery + query_stage * L::kQueryBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::mbarrier_wait(shared + L::kFull + (stage * kParts + part) * 8, parity);
#pragma unroll
      for (int i = 0; i < kChunks / kParts * 4; ++i) {
        const int chunk = part * (kChunks / kParts) + i / 4;
        ptx::Wgmma<N, 0>::run(s, keys + (chunk * kChunkBytes + (i % 4) * 32) / 16,
                              queries + (chunk * N * 128 + (i % 4) * 32) / 16, part + i > 0);
      }
    }
    ptx::wgmma_commit();
    const int count = min(kTile, segment.key_end - key);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);

    // Value rows past the end would multiply a zero weight, but may hold NaN: clear them.
    if (count < kTile) {
      const int pad = kTile - count;
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
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int limit = min(segment.key_end, row_limit(p, base_row, b * 8 + 2 * (lane % 4) + (j & 1),
                                                           last_query, segment.key_len));
          if (key + warp * 16 + lane / 4 + (j >> 1) * 8 >= limit) s[b * 4 + j] = kNegativeInfinity;
        }
      }
    }

    float* reduce = floats(L::kReduce) + group * 4 * N;
    float old_max[kBlocks][2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int column = b * 8 + 2 * (lane % 4);
      const float2 m = {lane_maximum(fmaxf(s[b * 4], s[b * 4 + 2])),
                        lane_maximum(fmaxf(s[b * 4 + 1], s[b * 4 + 3]))};
      if (lane < 4) *reinterpret_cast<float2*>(reduce + warp * N + column) = m;
      const float2 old = *reinterpret_cast<const float2*>(floats(L::kMaximum) + column);
      old_max[b][0] = first ? kNegativeInfinity : old.x;
      old_max[b][1] = first ? kNegativeInfinity : old.y;
    }
    ptx::barrier_sync(kBarWarpgroup + group, 128);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int column = b * 8 + 2 * (lane % 4);
      float2 m{kNegativeInfinity, kNegativeInfinity};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(reduce + w * N + column);
        m = {fmaxf(m.x, other.x), fmaxf(m.y, other.y)};
      }
      const float2 maximum = {fmaxf(old_max[b][0], m.x * p.scale_log2),
                              fmaxf(old_max[b][1], m.y * p.scale_log2)};
      const float2 rescale = {weight(old_max[b][0], maximum.x), weight(old_max[b][1], maximum.y)};
      const float2 offset = {maximum.x == kNegativeInfinity ? 0.f : maximum.x,
                             maximum.y == kNegativeInfinity ? 0.f : maximum.y};
      s[b * 4] = ptx::exp2_approx(s[b * 4] * p.scale_log2 - offset.x);
      s[b * 4 + 1] = ptx::exp2_approx(s[b * 4 + 1] * p.scale_log2 - offset.y);
      s[b * 4 + 2] = ptx::exp2_approx(s[b * 4 + 2] * p.scale_log2 - offset.x);
      s[b * 4 + 3] = ptx::exp2_approx(s[b * 4 + 3] * p.scale_log2 - offset.y);
      sum[b][0] = sum[b][0] * rescale.x + s[b * 4] + s[b * 4 + 2];
      sum[b][1] = sum[b][1] * rescale.y + s[b * 4 + 1] + s[b * 4 + 3];
      if (warp == 0 && lane < 4) {
        *reinterpret_cast<float2*>(floats(L::kMaximum) + column) = maximum;
        *reinterpret_cast<float2*>(floats(L::kRescale) + group * N + column) = rescale;
      }
    }

    // The other warpgroup has finished reading the previous tile's weights.
    ptx::barrier_sync(kBarWeightsFree, kConsumerThreads);
    const int half = (lane >> 3) & 1, line = lane & 7;
    const uint32_t weights = shared + L::kWeights + (lane >> 4) * 1024 + line * 128 +
                             (((warp * 2 + half) ^ line) << 4);
    if constexpr (kBlocks == 1) {
      ptx::store_matrix_x2_transposed(shared + L::kWeights + line * 128 +
                                          (((warp * 2 + half) ^ line) << 4),
                                      ptx::pack_bf16(s[0], s[1]), ptx::pack_bf16(s[2], s[3]));
    } else {
#pragma unroll
      for (int b = 0; b < kBlocks; b += 2) {
        ptx::store_matrix_x4_transposed(
            weights + b * 1024, ptx::pack_bf16(s[b * 4], s[b * 4 + 1]),
            ptx::pack_bf16(s[b * 4 + 2], s[b * 4 + 3]), ptx::pack_bf16(s[b * 4 + 4], s[b * 4 + 5]),
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
        ptx::operand_descriptor(shared + stage * kStageBytes + group * 4 * kChunkBytes);
    const uint64_t weights = ptx::operand_descriptor(shared + L::kWeights);
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

  // Row sums over lanes and warps, then either the output or a partial result.
  __device__ __forceinline__ void finish_segment(const Walker& walker, const Segment& segment,
                                                 bool empty) {
    float* reduce = floats(L::kReduce);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float v = sum[b][j];
        v += __shfl_xor_sync(~0u, v, 4);
        v += __shfl_xor_sync(~0u, v, 8);
        sum[b][j] = v + __shfl_xor_sync(~0u, v, 16);
      }
      if (lane < 4) {
        *reinterpret_cast<float2*>(reduce + (group * 4 + warp) * N + b * 8 + 2 * lane) = {
            sum[b][0], sum[b][1]};
      }
    }
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    const int block_warp = group * 4 + warp;
    if (segment.whole) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        float2 total{0.f, 0.f};
#pragma unroll
        for (int w = 0; w < 8; ++w) {
          const float2 part =
              *reinterpret_cast<const float2*>(reduce + w * N + b * 8 + 2 * (lane % 4));
          total = {total.x + part.x, total.y + part.y};
        }
        const float x = total.x > 0.f ? 1.f / total.x : 0.f;
        const float y = total.y > 0.f ? 1.f / total.y : 0.f;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          write_output(p, segment.request, b, 256 * group + 64 * m + 16 * warp,
                       {out[m][b * 4] * x, out[m][b * 4 + 1] * y, out[m][b * 4 + 2] * x,
                        out[m][b * 4 + 3] * y});
        }
      }
    } else {
      const int slot =
          partial_slot(blockIdx.x, segment.first_unit, walker.total, walker.blocks);
      float4* partial = p.partials + static_cast<int64_t>(slot) * (N * 128) + block_warp * 32 + lane;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          __stcg(partial + (m * kBlocks + b) * 256, float4{out[m][b * 4], out[m][b * 4 + 1],
                                                           out[m][b * 4 + 2], out[m][b * 4 + 3]});
        }
      }
    }
    if (threadIdx.x < N) {
      float total = 0.f;
      for (int w = 0; w < 8; ++w) total += reduce[w * N + threadIdx.x];
      const float maximum = empty ? kNegativeInfinity : floats(L::kMaximum)[threadIdx.x];
      if (!segment.whole) {
        const int slot =
            partial_slot(blockIdx.x, segment.first_unit, walker.total, walker.blocks);
        p.weights[slot * N + threadIdx.x] = {maximum, total};
      } else if (p.lse != nullptr) {
        write_lse(p, segment.request, threadIdx.x, maximum, total);
      }
    }
    if (!segment.whole) __threadfence();
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    if (!segment.whole && threadIdx.x == 0) {
      ptx::add_release(p.counters + segment.request, 1);
    }
  }

  __device__ __forceinline__ void run() {
    Walker walker(p);
    Segment segment;
    SharedRequest* requests = reinterpret_cast<SharedRequest*>(smem + L::kShared);
    int shared_segments = 0;
    int tile = 0;
    for (int i = 0; walker.next(p, &segment); ++i) {
      const int query_stage = i % L::kQueryStages;
      const int piece = segment.request % p.row_blocks;
      const int base_row = piece * p.rows_per_block;
      const int last_query = (min(p.rows, base_row + p.rows_per_block) - 1) / p.num_heads;
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
      for (int key = segment.key_begin; key < segment.key_end; key += kTile, ++tile) {
        const int stage = tile % kStages;
        const bool first = key == segment.key_begin;
        const bool own = (tile & 1) == group;
        if (own) {
          score_tile(segment, key, stage, (tile / kStages) & 1, query_stage, first, base_row,
                     last_query);
        } else {
          ptx::barrier_arrive(kBarWeightsFree, kConsumerThreads);
          for (int part = 0; part < kParts; ++part) {
            ptx::mbarrier_wait(shared + L::kFull + (stage * kParts + part) * 8,
                               (tile / kStages) & 1);
          }
        }
        ptx::barrier_sync(kBarWeightsReady, kConsumerThreads);
        accumulate_tile(stage, first, own);
        if (lane == 0) ptx::mbarrier_arrive(shared + L::kEmpty + stage * 8);
      }
      if (lane == 0) ptx::mbarrier_arrive(shared + L::kQueryEmpty + query_stage * 8);
      if (!segment.whole && threadIdx.x == 0) {
        requests[min(shared_segments, 1)] = {segment.request, segment.first_unit, segment.units};
      }
      shared_segments += !segment.whole;
      finish_segment(walker, segment, empty);
    }
    float4* scratch = reinterpret_cast<float4*>(smem);  // all tiles are consumed by now
    for (int i = 0; i < shared_segments; ++i) {
      merge_request<N>(p, walker, requests[i], scratch);
    }
  }
};

template <int N>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_kernel(const __grid_constant__ CUtensorMap query_map,
                      const __grid_constant__ CUtensorMap page_map,
                      const __grid_constant__ CUtensorMap small_map,
                      const __grid_constant__ KernelParams params) {
  using L = Layout<N>;
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t shared = ptx::shared_address(smem);
  const int warp = threadIdx.x / 32;
  if (warp == 8 && (threadIdx.x & 31) == 0) {
    if ((shared & 1023) != 0) __trap();  // the swizzle is a function of the address
    ptx::prefetch_tensor_map(&query_map);
    ptx::prefetch_tensor_map(&page_map);
    ptx::prefetch_tensor_map(&small_map);
    for (int i = 0; i < kStages * kParts; ++i) ptx::mbarrier_init(shared + L::kFull + i * 8, 1);
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(shared + L::kEmpty + i * 8, 8);
    for (int i = 0; i < L::kQueryStages; ++i) {
      ptx::mbarrier_init(shared + L::kQueryFull + i * 8, 1);
      ptx::mbarrier_init(shared + L::kQueryEmpty + i * 8, 8);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp >= 8) {
    ptx::register_decrease<56>();
    if (warp == 8) produce_keys<N>(params, &page_map, &small_map, shared);
    if (warp == 9) produce_queries<N>(params, &query_map, shared);
  } else {
    ptx::register_increase<224>();
    Consumer<N> consumer{params, smem, shared, warp / 4, warp & 3,
                         static_cast<int>(threadIdx.x & 31)};
    consumer.run();
  }
}

}  // namespace foresail::cuda::mla
