// What the kernel for more than 64 rows has in shared memory, and its shares of the schedule.
#pragma once

#include "kernels/cuda/sm90/mla_walker.cuh"
#include "kernels/cuda/sm90/mla_wide_output.cuh"

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

// A segment as the queries' warp, which walks for them, tells the computing warpgroups of it.
struct alignas(16) ManyRowsTask : WideTask {
  int key_begin;
  int key_end;
  int key_len;
  int last_query;
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

}  // namespace foresail::cuda::mla
