// The kernel of expanded_attention.h. A block takes two tiles of 64 rows of a head at a time, a
// warpgroup each, over one stream of keys and values: one warp copies keys, one values. A
// warpgroup asks for the scores of the next tile of keys before the values of this one, so that
// its softmax runs beside the second product.
#pragma once

#include "kernels/cuda/sm90/expanded_tiles.cuh"
#include "kernels/cuda/sm90/ptx.h"
#include "kernels/cuda/sm90/wgmma.h"

namespace foresail::cuda::expanded {

constexpr int kGroups = 2;
constexpr int kGroupRows = 64;
constexpr int kGroupThreads = 128;
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kStages = 2;
constexpr int kQueryChunkBytes = kGroupRows * kChunk * 2;
constexpr int kGroupQueryBytes = kQuery / kChunk * kQueryChunkBytes;
constexpr int kCopyRegisters = 40;
constexpr int kComputeRegisters = 232;
static_assert(kCopyRegisters + kGroups * kComputeRegisters == 3 * 168);
// Weights may exceed one by so many powers of two before a row's reference moves.
constexpr float kSlack = 8.0f;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNegativeInfinity = -INFINITY;

// Shared memory, in bytes from its start.
struct Layout {
  static constexpr int kKeyBytes = kNopeBytes + kRopeBytes;
  static constexpr int kKeys = 0;  // [kStages]
  static constexpr int kValues = kKeys + kStages * kKeyBytes;
  static constexpr int kQueries = kValues + kStages * kValueBytes;  // [kGroups]
  static constexpr int kSums = kQueries + kGroups * kGroupQueryBytes;
  static constexpr int kItems = kSums + kGroups * kGroupThreads * 8;  // [2]
  static constexpr int kKeysFull = kItems + 2 * 8;                    // barriers, [kStages]
  static constexpr int kKeysEmpty = kKeysFull + kStages * 8;
  static constexpr int kValuesFull = kKeysEmpty + kStages * 8;
  static constexpr int kValuesEmpty = kValuesFull + kStages * 8;
  static constexpr int kItemFull = kValuesEmpty + kStages * 8;  // [2]
  static constexpr int kItemEmpty = kItemFull + 2 * 8;
  static constexpr int kTotal = kItemEmpty + 2 * 8;
  static_assert(kTotal <= 227 * 1024);
};

struct KernelParams {
  ExpandedArgs args;
  Tiles tiles;
  float scale_log2;
  int row_tiles;
  int pairs;       // of row tiles
  int head_group;  // heads whose keys stay in L2 together
  int items;       // pairs of all heads
  bool opposite;   // a pair is the first and the last tile and so on, otherwise two neighbours
};

// What a block does at a time. Items are numbered those with the most keys first, within a group of
// heads.
struct Item {
  int head;
  int first, second;  // tiles of rows; past the last: none

  __device__ __forceinline__ Item(const KernelParams& p, int number) {
    const int of_group = p.head_group * p.pairs;
    const int first_head = number / of_group * p.head_group;
    const int rest = number % of_group;
    const int heads = min(p.head_group, p.args.heads - first_head);
    const int pair = rest / heads;
    head = first_head + rest % heads;
    if (p.opposite) {
      first = p.row_tiles - 1 - pair;
      second = pair < first ? pair : p.row_tiles;
    } else {
      first = (p.pairs - 1 - pair) * 2;
      second = first + 1;
    }
  }
  __device__ __forceinline__ int row_tile(int group) const { return group == 0 ? first : second; }
};

__device__ __forceinline__ int visible_to(const KernelParams& p, int row) {
  const auto keys = static_cast<int>(p.args.key_count);
  return p.args.causal ? min(keys, keys - static_cast<int>(p.args.rows) + 1 + row) : keys;
}

// Tiles of keys that some row of the tile of rows sees.
__device__ __forceinline__ int key_tiles(const KernelParams& p, int row_tile) {
  if (row_tile >= p.row_tiles) return 0;
  const int last = min((row_tile + 1) * kGroupRows, static_cast<int>(p.args.rows)) - 1;
  return (max(visible_to(p, last), 0) + kTileKeys - 1) / kTileKeys;
}

__device__ __forceinline__ int steps_of(const KernelParams& p, const Item& item) {
  return max(key_tiles(p, item.first), key_tiles(p, item.second));
}

// The item of a turn after the first, when it is known. One lane of a warp reads it: whoever reads
// arrives, and a barrier's arrival orders what its own thread did.
__device__ __forceinline__ int read_item(const uint8_t* smem, uint32_t shared, int turn) {
  const int slot = turn & 1;
  ptx::mbarrier_wait(shared + Layout::kItemFull + slot * 8, (turn >> 1 & 1) ^ slot ^ 1);
  const int number = *reinterpret_cast<const volatile int*>(smem + Layout::kItems + slot * 8);
  ptx::mbarrier_arrive(shared + Layout::kItemEmpty + slot * 8);
  return number;
}

__device__ __forceinline__ void tell_item(uint8_t* smem, uint32_t shared, int turn, int number) {
  const int slot = turn & 1;
  ptx::mbarrier_wait(shared + Layout::kItemEmpty + slot * 8, (turn >> 1 & 1) ^ slot);
  *reinterpret_cast<volatile int*>(smem + Layout::kItems + slot * 8) = number;
  ptx::mbarrier_arrive(shared + Layout::kItemFull + slot * 8);
}

__device__ __forceinline__ void copy_keys(const KernelParams& p, uint8_t* smem, uint32_t shared) {
  int number = static_cast<int>(blockIdx.x);
  int step = 0;
  for (int turn = 0; number < p.items; ++turn) {
    const Item item(p, number);
    const int steps = steps_of(p, item);
#pragma unroll 1
    for (int tile = 0; tile < steps; ++tile, ++step) {
      const int stage = step % kStages;
      const uint32_t full = shared + Layout::kKeysFull + stage * 8;
      const uint32_t to = shared + Layout::kKeys + stage * Layout::kKeyBytes;
      ptx::mbarrier_wait(shared + Layout::kKeysEmpty + stage * 8, (step / kStages & 1) ^ 1);
      ptx::mbarrier_arrive_expect(full, Layout::kKeyBytes);
      ptx::bulk_load(to, p.tiles.nope(item.head, tile), kNopeBytes, full);
      ptx::bulk_load(to + kNopeBytes, p.tiles.rope(tile), kRopeBytes, full);
    }
    // Whoever is free first takes the next.
    number = static_cast<int>(gridDim.x) + atomicAdd(p.tiles.counter(), 1);
    tell_item(smem, shared, turn + 1, number);
  }
}

__device__ __forceinline__ void copy_values(const KernelParams& p, const uint8_t* smem,
                                            uint32_t shared) {
  int number = static_cast<int>(blockIdx.x);
  int step = 0;
  for (int turn = 0; number < p.items; ++turn) {
    const Item item(p, number);
    const int steps = steps_of(p, item);
#pragma unroll 1
    for (int tile = 0; tile < steps; ++tile, ++step) {
      const int stage = step % kStages;
      const uint32_t full = shared + Layout::kValuesFull + stage * 8;
      ptx::mbarrier_wait(shared + Layout::kValuesEmpty + stage * 8, (step / kStages & 1) ^ 1);
      ptx::mbarrier_arrive_expect(full, kValueBytes);
      ptx::bulk_load(shared + Layout::kValues + stage * kValueBytes, p.tiles.value(item.head, tile),
                     kValueBytes, full);
    }
    number = read_item(smem, shared, turn + 1);
  }
}

// A warpgroup that computes.
struct Group {
  const KernelParams& p;
  const uint8_t* smem;
  uint32_t shared;
  int group, thread, warp, lane;  // thread, warp: within the warpgroup
  float out[kValue / 2];          // row lane / 4 at i % 4 < 2, row lane / 4 + 8 at the others
  float s[kTileKeys / 2];         // the same
  uint32_t weights[kTileKeys / 16][4];
  float reference[2];  // what weights in `out` and `sum` are relative to, base 2
  float sum[2];        // of this lane's keys

  __device__ __forceinline__ void arrive(uint32_t barrier) {
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ void meet() { ptx::barrier_sync(1 + group, kGroupThreads); }

  __device__ __forceinline__ void ask_scores(int step) {
    const int stage = step % kStages;
    ptx::mbarrier_wait(shared + Layout::kKeysFull + stage * 8, step / kStages & 1);
    const uint64_t queries =
        ptx::uniform_descriptor(shared + Layout::kQueries + group * kGroupQueryBytes);
    const uint64_t keys =
        ptx::uniform_descriptor(shared + Layout::kKeys + stage * Layout::kKeyBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kQuery / 16; ++i)
      ptx::Wgmma<kTileKeys>::run(s, queries + (i / 4 * kQueryChunkBytes + i % 4 * 32) / 16,
                                 keys + (i / 4 * kChunkBytes + i % 4 * 32) / 16, i > 0);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void ask_values(int step) {
    const int stage = step % kStages;
    ptx::mbarrier_wait(shared + Layout::kValuesFull + stage * 8, step / kStages & 1);
    const uint64_t values = ptx::wide_operand_descriptor(
        __shfl_sync(~0u, shared + Layout::kValues + stage * kValueBytes, 0), kChunkBytes);
    ptx::pin_registers(out);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k)
      ptx::wgmma_registers<1>(out, weights[k], values + k * 16 * 128 / 16, 1);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void free_keys(int step) {
    arrive(shared + Layout::kKeysEmpty + step % kStages * 8);
  }
  __device__ __forceinline__ void free_values(int step) {
    arrive(shared + Layout::kValuesEmpty + step % kStages * 8);
  }

  // Scores of keys from `key` on become weights, in s. Returns whether the reference of a row of
  // this warp has moved; factor is known only then. A row's reference moves by its own scores
  // alone.
  __device__ __forceinline__ bool weigh(int key, const int (&visible)[2], int seen_by_all,
                                        float (&factor)[2]) {
    if (key + kTileKeys > seen_by_all) {
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i) {
        const int at = key + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (at >= visible[i % 4 / 2]) s[i] = kNegativeInfinity;
      }
    }
    float raised[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 1; i < kTileKeys / 2; ++i)
      if (i != 2) raised[i % 4 / 2] = fmaxf(raised[i % 4 / 2], s[i]);
    const bool moved = __any_sync(~0u, raised[0] * p.scale_log2 > reference[0] + kSlack ||
                                           raised[1] * p.scale_log2 > reference[1] + kSlack);
    if (moved) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        raised[r] = fmaxf(raised[r], __shfl_xor_sync(~0u, raised[r], 1));
        raised[r] = fmaxf(raised[r], __shfl_xor_sync(~0u, raised[r], 2)) * p.scale_log2;
        factor[r] = 1.0f;
        if (raised[r] > reference[r] + kSlack) {
          factor[r] = ptx::exp2_approx(reference[r] - raised[r]);
          reference[r] = raised[r];
          sum[r] *= factor[r];
        }
      }
    }
    float offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) offset[r] = reference[r] == kNegativeInfinity ? 0.0f : reference[r];
    float part[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kTileKeys / 2; ++i) {
      s[i] = ptx::exp2_approx(s[i] * p.scale_log2 - offset[i % 4 / 2]);
      part[i % 4 / 2] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += part[r];
    return moved;
  }

  // The store keeps the compiler from putting the softmax behind the wait for the product that it
  // is to run beside: the sums need every weight.
  __device__ __forceinline__ void tell_sums() {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared + Layout::kSums +
                                                          (group * kGroupThreads + thread) * 8),
                 "f"(sum[0]), "f"(sum[1])
                 : "memory");
  }

  __device__ __forceinline__ void round_weights() {
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weights[k][i] = ptx::pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }

  // `mine` tiles of keys; step: of the block, of the first of them. All but the last one's values.
  __device__ __forceinline__ void attend(int first_row, int mine, int step) {
    const int visible[2] = {visible_to(p, first_row + warp * 16 + lane / 4),
                            visible_to(p, first_row + warp * 16 + lane / 4 + 8)};
    const int seen_by_all = visible_to(p, first_row);
    float factor[2];
    ask_scores(step);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
    free_keys(step);
    weigh(0, visible, seen_by_all, factor);
    round_weights();
#pragma unroll 1
    for (int tile = 1; tile < mine; ++tile, ++step) {
      ask_scores(step + 1);
      ask_values(step);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(s);
      free_keys(step + 1);
      const bool moved = weigh(tile * kTileKeys, visible, seen_by_all, factor);
      tell_sums();
      finish_values(step);
      round_weights();
      if (moved) {
#pragma unroll
        for (int i = 0; i < kValue / 2; ++i) out[i] *= factor[i % 4 / 2];
      }
    }
  }

  __device__ __forceinline__ void finish_values(int step) {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) ptx::keep_registers(weights[k]);
    ptx::pin_registers(out);
    free_values(step);
  }

  // Queries of a tile of rows: thread / 16 is the row of eight, 16 threads read 64 numbers of it.
  static constexpr int kPieces = kGroupRows / 8 * (kQuery / kChunk);
  __device__ __forceinline__ void load_queries(const Item& item, float4 (&pieces)[kPieces]) {
    const int row_tile = item.row_tile(group);
    const int last = static_cast<int>(p.args.rows) - 1;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      // Past the last row its numbers again: what becomes of them is stored nowhere.
      const int row = min(row_tile * kGroupRows + i / 3 * 8 + thread / 16, last);
      pieces[i] = __ldg(reinterpret_cast<const float4*>(p.args.q + row * p.args.q_stride +
                                                        item.head * kQuery + i % 3 * kChunk) +
                        thread % 16);
    }
  }
  // Nobody may still read the queries before.
  __device__ __forceinline__ void store_queries(const float4 (&pieces)[kPieces]) {
    const uint32_t to = shared + Layout::kQueries + group * kGroupQueryBytes + thread / 16 * 128 +
                        (thread % 16 / 2 ^ thread / 16) * 16 + thread % 2 * 8;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      asm volatile(
          "st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to + i % 3 * kQueryChunkBytes + i / 3 * 1024),
          "r"(ptx::pack_bf16(pieces[i].x, pieces[i].y)),
          "r"(ptx::pack_bf16(pieces[i].z, pieces[i].w))
          : "memory");
    ptx::fence_proxy_async();
    meet();
  }

  __device__ __forceinline__ void store_rows(const Item& item) {
    const ExpandedArgs& a = p.args;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int row = item.row_tile(group) * kGroupRows + warp * 16 + lane / 4 + 8 * r;
      if (row >= a.rows) continue;
      const bool empty = visible_to(p, row) <= 0;
      const float inverse = empty ? 0.0f : 1.0f / total;
      float* to = a.out + row * a.out_stride + item.head * kValue + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kValue / 8; ++j)
        *reinterpret_cast<float2*>(to + j * 8) =
            float2{out[4 * j + 2 * r] * inverse, out[4 * j + 2 * r + 1] * inverse};
      if (lane % 4 == 0)
        a.lse[row * a.lse_stride + item.head] =
            empty ? kNegativeInfinity : (reference[r] + log2f(total)) / kLog2e;
    }
  }

  __device__ __forceinline__ void run() {
    float4 pieces[kPieces];
    int step = 0;
    Item item(p, static_cast<int>(blockIdx.x));
    load_queries(item, pieces);
    store_queries(pieces);
    for (int turn = 0;; ++turn) {
      const int steps = __shfl_sync(~0u, steps_of(p, item), 0);
      const int mine = __shfl_sync(~0u, key_tiles(p, item.row_tile(group)), 0);
#pragma unroll
      for (int i = 0; i < kValue / 2; ++i) out[i] = 0.0f;
      reference[0] = reference[1] = kNegativeInfinity;
      sum[0] = sum[1] = 0.0f;
      int next = 0;
      const auto learn_next = [&] {
        if (lane == 0) next = read_item(smem, shared, turn + 1);
        next = __shfl_sync(~0u, next, 0);
      };
      const auto next_item = [&] { return Item(p, min(next, p.items - 1)); };
      if (mine > 0) {
        attend(item.row_tile(group) * kGroupRows, mine, step);
        // The next item's queries come beside the last product, but while the other warpgroup
        // still reads keys it is not known: then some others.
        if (mine == steps) learn_next();
        const Item likely = next_item();
        ask_values(step + mine - 1);
        load_queries(likely, pieces);
        finish_values(step + mine - 1);
      }
#pragma unroll 1
      for (int i = mine; i < steps; ++i) {
        const int passed = step + i;
        ptx::mbarrier_wait(shared + Layout::kKeysFull + passed % kStages * 8, passed / kStages & 1);
        free_keys(passed);
        ptx::mbarrier_wait(shared + Layout::kValuesFull + passed % kStages * 8,
                           passed / kStages & 1);
        free_values(passed);
      }
      step += steps;
      if (mine < steps || mine == 0) {
        learn_next();
        load_queries(next_item(), pieces);
      }
      store_rows(item);
      if (next >= p.items) return;
      item = Item(p, next);
      meet();
      store_queries(pieces);
    }
  }
};

__global__ void __launch_bounds__(kThreads, 1)
    attention_kernel(const __grid_constant__ KernelParams params) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t shared = ptx::shared_address(smem);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    if ((shared & 1023) != 0) __trap();  // the swizzle is a function of the address
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(shared + Layout::kKeysFull + i * 8, 1);
      ptx::mbarrier_init(shared + Layout::kKeysEmpty + i * 8, kGroups * 4);
      ptx::mbarrier_init(shared + Layout::kValuesFull + i * 8, 1);
      ptx::mbarrier_init(shared + Layout::kValuesEmpty + i * 8, kGroups * 4);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(shared + Layout::kItemFull + i * 8, 1);
      ptx::mbarrier_init(shared + Layout::kItemEmpty + i * 8, kGroups * 4 + 1);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::wait_for_predecessor();
  if (warp < 4) {
    ptx::register_decrease<kCopyRegisters>();
    if (warp == 0 && ptx::elect_lane()) copy_keys(params, smem, shared);
    if (warp == 1 && ptx::elect_lane()) copy_values(params, smem, shared);
  } else {
    ptx::register_increase<kComputeRegisters>();
    Group group{params,   smem, shared, warp / 4 - 1, static_cast<int>(threadIdx.x & 127),
                warp & 3, lane};
    group.run();
  }
}

}  // namespace foresail::cuda::expanded
