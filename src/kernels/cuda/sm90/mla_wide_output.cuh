// The end of a segment in the kernels whose 64 rows are the M side of the values' product: each of
// two warpgroups holds 256 latent dims of the output as accumulators.
#pragma once

#include "kernels/cuda/sm90/mla_merge.cuh"

namespace foresail::cuda::mla {

// Pieces of these kernels. Piece ((step * 2 + row half) * 4 + warp), step of 32 along the latent
// dims: 8 of a warp's 16 rows.
struct WidePieces {
  static constexpr int kCount = 128;
  static constexpr int kLaneDims = 2;
  static __device__ __forceinline__ int first_row(int piece) {
    return piece % 4 * 16 + piece / 4 % 2 * 8;
  }
  static __device__ __forceinline__ int first_dim(int piece) { return piece / 8 * 32; }
  static __device__ __forceinline__ int pair_dim(int i) { return i * 8; }
  template <int kPairs>
  static __device__ __forceinline__ void load(const PartialPiece* from, int,
                                              LanePart<kPairs>* part) {
    static_assert(kPairs == 4);
    load_pairs(from, part->pairs);
    part->log_sum = __ldcg(&from->log_sum[(threadIdx.x & 31) / 4]);
  }
};

// One of the two warpgroups. Accumulators, weights and what is said of two rows: row lane / 4 at
// i % 4 < 2, row lane / 4 + 8 at the others.
template <typename L, typename Params>
struct WideOutput {
  const Params& p;
  uint8_t* smem;
  uint32_t shared;
  int group, thread, warp, lane;  // thread, warp: within the warpgroup
  float out[2][64];               // 128 latent dims each

  // first_warp: of the block, of the two warpgroups.
  __device__ __forceinline__ WideOutput(const Params& p, uint8_t* smem, uint32_t shared,
                                        int first_warp)
      : p(p),
        smem(smem),
        shared(shared),
        group((static_cast<int>(threadIdx.x) - first_warp * 32) / 128),
        thread(threadIdx.x & 127),
        warp(thread / 32),
        lane(threadIdx.x & 31) {}

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i / 64][i % 64] = 0.f;
  }

  __device__ __forceinline__ void rescale(float first, float second) {
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i / 64][i % 64] *= i % 4 < 2 ? first : second;
  }

  // Weights of a tile as the products' operands, four steps of 16 keys: what thread i of one
  // warpgroup stores is what thread i of another one needs.
  __device__ __forceinline__ void load_weights(uint32_t (&weights)[4][4]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 packed = reinterpret_cast<const uint4*>(smem + L::kWeights)[k * 128 + thread];
      weights[k][0] = packed.x;
      weights[k][1] = packed.y;
      weights[k][2] = packed.z;
      weights[k][3] = packed.w;
    }
  }

  // Output of a segment, or this block's part of it. By both warpgroups. inverse: of a row's sum of
  // weights, whose base-2 logarithm is log_sum.
  __device__ __forceinline__ void write(const WideTask& task, const PartSet& set,
                                        const float (&inverse)[2], const float (&log_sum)[2]) {
    const RowRange rows(p, task.request);
    rescale(inverse[0], inverse[1]);
    if (task.whole) {
      write_whole(rows, log_sum);
    } else {
      publish(task, set, log_sum);
    }
  }

  __device__ __forceinline__ void write_whole(const RowRange& rows, const float (&log_sum)[2]) {
    const int row = warp * 16 + lane / 4;
    __nv_bfloat16* to =
        p.output + static_cast<int64_t>(rows.first + row) * kLatent + group * 256 + 2 * (lane % 4);
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
  }

  __device__ __forceinline__ void publish(const WideTask& task, const PartSet& set,
                                          const float (&log_sum)[2]) {
    const int slot = partial_slot(set.block, task.first_unit, task.total, task.blocks);
    PartialPiece* to = set.template piece<WidePieces>(slot, group * 64 + warp);
    const uint64_t stays = ptx::evict_last_policy();  // as in TaggedSet
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* o = &out[step / 4][step % 4 * 16 + 2 * r];
        ptx::store(reinterpret_cast<uint4*>(to[(step * 2 + r) * 4].pairs) + lane,
                   uint4{ptx::pack_half(o[0], o[1]), ptx::pack_half(o[4], o[5]),
                         ptx::pack_half(o[8], o[9]), ptx::pack_half(o[12], o[13])},
                   stays);
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

  // Of the requests that other blocks work on too, when all of this block's segments are written.
  __device__ __forceinline__ void merge(const PartSet& set, const WideTask& last) {
    // All tiles are consumed after this, their memory is free, and the list is written.
    ptx::barrier_sync(kBarConsumers, kConsumerThreads);
    const SharedRequest* requests = reinterpret_cast<const SharedRequest*>(smem + L::kShared);
    const int merges = *reinterpret_cast<const int*>(smem + L::kSharedCount);
#pragma unroll 1
    for (int i = 0; i < merges; ++i) {
      merge_request<WidePieces, 9>(p, set, last.total, last.blocks, requests[i],
                                   RowRange(p, requests[i].request), group * 4 + warp, smem);
    }
  }
};

}  // namespace foresail::cuda::mla
