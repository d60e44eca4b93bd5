// Parameters, shared-memory map and constants of the MLA decode kernel. No code.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mla_schedule.h"

namespace foresail::cuda::mla {

inline constexpr int kLatent = 512;
inline constexpr int kKeyDim = 576;
inline constexpr int kTileLog2 = 6;
inline constexpr int kTile = 1 << kTileLog2;  // keys a tile
inline constexpr int kChunks = kKeyDim / 64;  // 128-byte wide column chunks of a key
inline constexpr int kLatentChunks = kLatent / 64;
inline constexpr int kStages = 2;
inline constexpr int kParts = 3;  // a tile lands in three parts of three chunks
inline constexpr int kChunkBytes = kTile * 128;
inline constexpr int kStageBytes = kChunks * kChunkBytes;
inline constexpr int kConsumerThreads = 256;
inline constexpr int kThreads = 384;
inline constexpr int kWideRows = 64;      // of the wide kernels, a block
inline constexpr int kWideThreads = 512;  // copying, scoring, and two value warpgroups
inline constexpr int kMostShares = 256;   // of the schedule: no device has as many SMs
inline constexpr int kSmallBoxLog2 = 4;
inline constexpr int kSmallBox = 1 << kSmallBoxLog2;  // rows of the small tensor box, at most
inline constexpr float kNegativeInfinity = -__builtin_huge_valf();

// Named barriers. 0 is __syncthreads.
enum : int { kBarWarpgroup = 1, kBarWeightsReady = 3, kBarConsumers = 4, kBarMaxima = 5 };

// A part of a shared request's output, one warp's: 8 rows x 32 latent dims, 8 values of row lane /
// 4 a lane, and for each row the base-2 logarithm of its sum of weights (-infinity: no key). Values
// are normalised, so float16 is enough.
struct alignas(32) PartialPiece {
  uint32_t pairs[4 * 32];  // order: Pieces::load
  float log_sum[8];
};

// The same in units of 16 bytes: two pairs, the logarithm, the number of the call that wrote it
// (mla_tagged_parts.cuh).
struct TaggedPiece {
  uint4 units[2 * 32];  // [2][32 lanes]
};

// A shared request of this block, as the merge of tagged parts needs it.
struct alignas(16) TaggedTask {
  int first_row;  // of output and lse
  int row_count;
  int first_block;  // of those that share it
  int count;        // of blocks, and so of parts
};

// In shared memory: what a spare warp finds out for the end of a block.
struct TagPlace {
  TaggedTask tasks[2];
  int task_count;
  uint32_t tag;   // of this call's parts
  uint64_t full;  // barrier
};

// First what the way to the first copy needs: constants are read line by line, and a block finds
// none of them in its caches.
struct KernelParams {
  const int32_t* kv_end;
  const int32_t* block_table;
  const int32_t* slots;
  int batch;
  int row_blocks;  // pieces the rows are cut into, each a request of its own to the schedule
  int kv_end_add;
  int unit_log2;          // keys a unit of the schedule; the fewest where the cut is fixed
  int fixed_splits_log2;  // -1: keys are cut evenly over the blocks; else most parts of a request
  int shares;             // of the schedule, or of each of row_sets schedules
  Divider by_shares;
  int page_log2;
  int max_pages;
  int pool_rows;  // num_pages * page_size: first row past the pool
  Divider by_row_blocks;
  Divider by_heads;
  const __nv_bfloat16* query;
  __nv_bfloat16* output;
  float* lse;
  int* counters;           // [kMostShares * 2] arrivals at shared requests, zero between calls
  PartialPiece* partials;  // [2 * blocks, pieces]
  TaggedPiece* tagged;     // the same, or [requests << fixed_splits_log2, pieces]
  uint32_t* calls;         // how many there were; how many blocks of this one know that
  int q_len;
  int rows;            // q_len * num_heads
  int rows_per_block;  // <= N
  float scale_log2;    // softmax scale * log2(e), times cache_scale
  float cache_scale;   // value of a code 1; 1 for a bf16 cache
  int row_sets;        // 1, or the row blocks: then each has a schedule and shares of its own
};

// Of a call whose rows are in one piece each and whose cut is not fixed. With both known to the
// compiler the ways that a block walks once are half as long, and these are what a short call is.
struct PlainParams : KernelParams {
  static constexpr int row_blocks = 1;
  static constexpr int fixed_splits_log2 = -1;
};

template <typename Params>
inline constexpr bool kPlain = false;
template <>
inline constexpr bool kPlain<PlainParams> = true;

inline bool is_plain(const KernelParams& p) {
  return p.row_blocks == 1 && p.fixed_splits_log2 < 0;
}

template <int N>
struct Layout {
  static_assert(N <= 32);
  static constexpr int kStages = mla::kStages;
  static constexpr int kParts = mla::kParts;
  static constexpr int kEarlyPages = 4;
  static constexpr int kTileChunks = kChunks;
  static constexpr int kChunkColumns = 64;
  static constexpr int kChunksACopy = kChunks / kParts;
  static constexpr int kStageBytes = mla::kStageBytes;
  // Registers a thread after the roles part; 128 * producer + 256 * consumer = 384 * 168, the
  // registers a block is launched with (asking for more would wait for ever).
  static constexpr int kProducerRegisters = 72;
  static constexpr int kConsumerRegisters = 216;
  static_assert(128 * kProducerRegisters + 256 * kConsumerRegisters == 384 * 168);
  static constexpr int kQueryStages = 2;
  static constexpr int kQueryBytes = kChunks * N * 128;
  static constexpr int kQuery = kStages * kStageBytes;
  static constexpr int kWeights =
      kQuery + kQueryStages * kQueryBytes;  // P^T [warpgroup whose turn it is][N, 64 keys] bf16
  static constexpr int kReduce = kWeights + 2 * N * 128;  // [4 warps][N] float
  static constexpr int kMaximum = kReduce + 4 * N * 4;    // [warpgroup whose turn it is][N] float
  static constexpr int kRescale = kMaximum + 2 * N * 4;   // the same
  static constexpr int kHidden = kRescale + 2 * N * 4;    // [N] int, last keys a row does not see
  static constexpr int kBarriers = kHidden + N * 4;
  static constexpr int kFull = kBarriers;  // [kStages][kParts]
  static constexpr int kEmpty = kFull + kStages * kParts * 8;
  static constexpr int kQueryFull = kEmpty + kStages * 8;
  static constexpr int kQueryEmpty = kQueryFull + kQueryStages * 8;
  static constexpr int kTagPlace = kQueryEmpty + kQueryStages * 8;
  static constexpr int kTotal = kTagPlace + static_cast<int>(sizeof(TagPlace));
  static_assert(kTagPlace % 16 == 0);
  static_assert(kTotal <= 227 * 1024);
};

// The kernel for an e4m3 cache. A tile is five chunks of 128 codes a key, the last one half empty
// (the copy engine fills zeros), and lands chunk by chunk.
template <int N>
struct CodeLayout {
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 224;
  static_assert(128 * kProducerRegisters + 256 * kConsumerRegisters == 384 * 168);
  static constexpr int kStages = N <= 16 ? 5 : 4;
  static constexpr int kParts = 5;
  static constexpr int kEarlyPages = 4;
  static constexpr int kTileChunks = 5;
  static constexpr int kChunkColumns = 128;
  static constexpr int kStageBytes = kTileChunks * kChunkBytes;
  static constexpr int kTerms =
      2 * N;  // columns of a product: rows' first terms, then their second
  static constexpr int kQuery = kStages * kStageBytes;  // [kTerms, 576] e4m3, chunks of 128
  static constexpr int kWeights = kQuery + kTileChunks * kTerms * 128;  // P^T of 128 keys, e4m3
  static constexpr int kReduce = kWeights + kTerms * 128;               // [8 warps][N] float
  static constexpr int kMaximum = kReduce + 8 * N * 4;                  // [step parity][N] float
  static constexpr int kHidden = kMaximum + 2 * N * 4;                  // [N] int
  static constexpr int kRowScale = kHidden + N * 4;  // [N] float, base-2 score of a product of 1
  static constexpr int kFull = kRowScale + N * 4;    // [kStages][kParts]
  static constexpr int kEmpty = kFull + kStages * kParts * 8;
  static constexpr int kTagPlace = (kEmpty + kStages * 8 + 15) / 16 * 16;
  static constexpr int kTotal = kTagPlace + static_cast<int>(sizeof(TagPlace));
  static_assert(kTotal <= 227 * 1024);
};

// A segment as the score warpgroup of a wide kernel tells the value warpgroups of it: they have no
// registers to spare for a walk of their own.
struct WideTask {
  int tiles;  // -1: no segment any more
  int request;
  int first_unit;
  int units;
  int total;   // of the walker
  int blocks;  // the same
  bool whole;
};

}  // namespace foresail::cuda::mla
