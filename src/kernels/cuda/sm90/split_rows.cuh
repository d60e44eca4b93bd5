// Rows of f32 as the bf16 terms that the warpgroup products read (wide_layout.h).
#pragma once

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/sm90/wide_layout.h"

namespace foresail::cuda {

// The 16 bytes that the tensor cores read at positions 8 * half ... of a tile of 16 inputs: the
// inputs 4q + 2 * half and the next, q = 0..3, since a packed tile of weights renames them so.
__device__ __forceinline__ uint4 half_of(const uint32_t (&terms)[4][2], int half) {
  return make_uint4(terms[0][half], terms[1][half], terms[2][half], terms[3][half]);
}

// 16 inputs of one row to their places: in the chunk of 64 whose first term begins there, those of
// tile k on the row's line.
template <bool kBF16>
__device__ __forceinline__ void store_terms(const Terms (&x)[4], uint4* chunk, int term_bytes,
                                            int line, int k) {
  uint32_t high[4][2], low[4][2];
#pragma unroll
  for (int q = 0; q < 4; ++q)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      high[q][half] = x[q].high[half];
      low[q][half] = x[q].low[half];
    }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4* to = chunk + line * 8 + ((2 * k + half) ^ line);  // the swizzle
    *to = half_of(high, half);
    if (!kBF16) to[term_bytes / 16] = half_of(low, half);
  }
}

// Four inputs of one row to their places: the line's quad-th in the group of eight rows whose first
// term begins there.
template <bool kBF16>
__device__ __forceinline__ void store_quad(const Terms& x, std::byte* group, int term_bytes,
                                           int line, int quad) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = (2 * (quad / 4) + half) ^ line;  // the swizzle
    auto* to = reinterpret_cast<uint32_t*>(group + line * 128 + place * 16) + quad % 4;
    *to = x.high[half];
    if (!kBF16) to[term_bytes / 4] = x.low[half];
  }
}

// Where the chunk's first term of a tile's group of eight rows begins.
template <bool kBF16>
__device__ __forceinline__ uint4* chunk_of(uint4* scratch, int64_t tile, int chunks, int chunk,
                                           int group, int tile_rows) {
  return scratch +
         ((tile * chunks + chunk) * terms_of(kBF16) * term_bytes(tile_rows) + group * kAtomBytes) /
             16;
}

// By a warp: 64 inputs of eight rows of a tile, a lane 16 inputs of one row. `place`: the tile's
// number among all that are split.
template <bool kBF16>
__device__ __forceinline__ void split_chunk(const GemmArgs& args, const Part& part, int64_t place,
                                            int group, int chunk, int tile_rows, int chunks,
                                            uint4* scratch) {
  const int lane = threadIdx.x % kWarp;
  const int line = lane / kChunkTiles;
  const int k = lane % kChunkTiles;
  // What lies past the last row is never stored, so any row will do.
  const void* row =
      row_pointer<kBF16>(args, part, min(group * kGroupRows + line, part.row_count - 1));
  Terms x[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int input = (chunk * kChunkTiles + k) * kTileInputs + 4 * q;
    x[q] = terms(load_four<kBF16, true>(row, input, static_cast<int>(args.n_in)));
  }
  store_terms<kBF16>(x, chunk_of<kBF16>(scratch, place, chunks, chunk, group, tile_rows),
                     term_bytes(tile_rows), line, k);
}

// Where the results of a thread of the warpgroup products go as rows of the next product: those of
// 16 outputs and all rows of its block, of which it holds outputs g and g + 8 of rows 2q and 2q + 1
// of every eight. All that differs between its numbers is in few pointers: the code that stores 64
// of them is run once a block, and comes from memory.
class SplitResults {
 public:
  // `y`: the block's of its grid.
  __device__ __forceinline__ SplitResults(const GemmArgs& args, const Part& part, int tile,
                                          unsigned y, int g, int q)
      : term_(term_bytes(args.split_out.tile_rows) / 2),
        groups_(tile * kTileOutputs < part.n_out ? (part.row_count + kGroupRows - 1) / kGroupRows
                                                 : 0) {
    const SplitOut& split = args.split_out;
    // Results of a group follow those of the one before it.
    const int input_tile = static_cast<int>(part.out_offset / kTileOutputs) + tile;
    const bool listed = args.tiles != nullptr;
    const int64_t row_tile = listed ? static_cast<int>(y) : part.row_begin / split.tile_rows;
    const int group = listed ? 0 : part.row_begin % split.tile_rows / kGroupRows;
    auto* chunk = reinterpret_cast<__nv_bfloat16*>(
        chunk_of<false>(static_cast<uint4*>(split.to), row_tile, split.chunks,
                        input_tile / kChunkTiles, group, split.tile_rows));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int input = g + (i >= 2 ? 8 : 0);
      const int line = 2 * q + i % 2;
      const int place = (2 * (input_tile % kChunkTiles) + input % 4 / 2) ^ line;  // the swizzle
      at_[i] = chunk + line * 64 + place * 8 + input / 4 * 2 + input % 2;
    }
  }
  // The i-th number that the thread holds; also of rows that fill up the last eight, which are
  // copied with them.
  __device__ __forceinline__ void store(int i, float value) const {
    if (i / 4 >= groups_) return;
    __nv_bfloat16* at = at_[i % 4] + i / 4 * (kAtomBytes / 2);
    const __nv_bfloat16 high = __float2bfloat16_rn(value);
    at[0] = high;
    at[term_] = __float2bfloat16_rn(value - __bfloat162float(high));
  }

 private:
  __nv_bfloat16* at_[4];
  int term_;    // numbers from a high term to its low one
  int groups_;  // of eight rows
};

}  // namespace foresail::cuda
