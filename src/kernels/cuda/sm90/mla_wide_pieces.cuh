// Pieces of a part where 64 rows are the M side of the values' product and each of two warpgroups
// holds 256 latent dims.
#pragma once

#include "kernels/cuda/sm90/mla_merge.cuh"

namespace foresail::cuda::mla {

// Piece ((step * 2 + row half) * 4 + warp), step of 32 along the latent dims: 8 of a warp's 16
// rows.
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

}  // namespace foresail::cuda::mla
