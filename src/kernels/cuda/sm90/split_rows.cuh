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

// 16 inputs of a row from `input` on, zeros past n_in.
template <bool kBF16>
__device__ __forceinline__ void load_sixteen(const void* row, int input, int n_in,
                                             Loaded<kBF16> (&x)[4]) {
  if constexpr (kBF16) {
    const auto* from = static_cast<const __nv_bfloat16*>(row) + input;
    if (input + kTileInputs <= n_in && reinterpret_cast<uintptr_t>(from) % sizeof(uint4) == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 eight = *(reinterpret_cast<const uint4*>(from) + half);
        x[2 * half].four = make_uint2(eight.x, eight.y);
        x[2 * half + 1].four = make_uint2(eight.z, eight.w);
      }
      return;
    }
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) x[q] = load_four<kBF16, true>(row, input + 4 * q, n_in);
}

// By a warp: kTogether chunks, from `first` on, of eight rows of a tile, a lane 16 inputs of one
// row of each. `place`: the tile's number among all that are split.
template <bool kBF16, int kTogether = 1>
__device__ __forceinline__ void split_chunks(const GemmArgs& args, const Part& part, int64_t place,
                                             int group, int first, int tile_rows, int chunks,
                                             uint4* scratch) {
  const int lane = threadIdx.x % kWarp;
  const int line = lane / kChunkTiles;
  const int k = lane % kChunkTiles;
  // What lies past the last row is never stored, so any row will do.
  const void* row =
      row_pointer<kBF16>(args, part, min(group * kGroupRows + line, part.row_count - 1));
  Loaded<kBF16> loaded[kTogether][4];
#pragma unroll
  for (int c = 0; c < kTogether; ++c)
    load_sixteen<kBF16>(row, ((first + c) * kChunkTiles + k) * kTileInputs,
                        static_cast<int>(args.n_in), loaded[c]);
#pragma unroll
  for (int c = 0; c < kTogether; ++c) {
    if (first + c >= chunks) return;
    Terms x[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) x[q] = terms(loaded[c][q]);
    store_terms<kBF16>(x, chunk_of<kBF16>(scratch, place, chunks, first + c, group, tile_rows),
                       term_bytes(tile_rows), line, k);
  }
}
// How many a warp had better take: bf16 rows are many, and a chunk of theirs is little.
template <bool kBF16>
constexpr int kSplitTogether = kBF16 ? 4 : 1;

// Where the results of a block's 16 outputs go as inputs of the next product.
struct SplitPlace {
  int input_tile;
  int row_tile;
  int group;   // the block's first, of that tile's
  int groups;  // of eight rows; 0: there are no such outputs
};

// `y`: the block's of its grid.
__device__ __forceinline__ SplitPlace split_place(const GemmArgs& args, const Part& part, int tile,
                                                  int y) {
  const int tile_rows = args.split_out.tile_rows;
  const bool listed = args.tiles != nullptr;
  // Results of a group follow those of the one before it.
  return {static_cast<int>(part.out_offset / kTileOutputs) + tile,
          listed ? y : part.row_begin / tile_rows,
          listed ? 0 : part.row_begin % tile_rows / kGroupRows,
          tile * kTileOutputs < part.n_out ? (part.row_count + kGroupRows - 1) / kGroupRows : 0};
}

template <bool kBF16>
__device__ __forceinline__ uint4* chunk_of(const SplitOut& split, const SplitPlace& place) {
  return chunk_of<kBF16>(static_cast<uint4*>(split.to), place.row_tile, split.chunks,
                         place.input_tile / kChunkTiles, place.group, split.tile_rows);
}

// The results of a thread of the warpgroup products as rows of the next product: those of 16
// outputs and all rows of its block, of which it holds outputs g and g + 8 of rows 2q and 2q + 1
// of every eight. All that differs between its numbers is in few pointers: the code that stores 64
// of them is run once a block, and comes from memory.
template <bool kBF16>
class SplitResults {
 public:
  // `chunk`: where its first term begins.
  __device__ __forceinline__ SplitResults(void* chunk, int term_bytes, const SplitPlace& to, int g,
                                          int q)
      : term_(term_bytes / 2), groups_(to.groups) {
    auto* const first = static_cast<__nv_bfloat16*>(chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int input = g + (i >= 2 ? 8 : 0);
      const int line = 2 * q + i % 2;
      const int place = (2 * (to.input_tile % kChunkTiles) + input % 4 / 2) ^ line;  // the swizzle
      at_[i] = first + line * 64 + place * 8 + input / 4 * 2 + input % 2;
    }
  }
  // In memory, where split_out says. `y`: the block's of its grid.
  __device__ __forceinline__ SplitResults(const GemmArgs& args, const Part& part, int tile, int y,
                                          int g, int q)
      : SplitResults(args.split_out, split_place(args, part, tile, y), g, q) {}
  // The i-th number that the thread holds; also of rows that fill up the last eight, which are
  // copied with them.
  __device__ __forceinline__ void store(int i, float value) const {
    if (i / 4 >= groups_) return;
    __nv_bfloat16* at = at_[i % 4] + i / 4 * (kAtomBytes / 2);
    const __nv_bfloat16 high = __float2bfloat16_rn(value);
    at[0] = high;
    if (!kBF16) at[term_] = __float2bfloat16_rn(value - __bfloat162float(high));
  }

 private:
  __device__ __forceinline__ SplitResults(const SplitOut& split, const SplitPlace& to, int g, int q)
      : SplitResults(chunk_of<kBF16>(split, to), term_bytes(split.tile_rows), to, g, q) {}

  __nv_bfloat16* at_[4];
  int term_;    // numbers from a high term to its low one
  int groups_;  // of eight rows
};

// Where the numbers of such a thread go that are not split: four of every eight rows, which it
// passes one after the other. The i-th of the four: row i % 2, output 8 * (i / 2).
template <typename T>
class PlainResults {
 public:
  __device__ __forceinline__ PlainResults(const Target& target, int tile, int g, int q)
      : rows_(target.part.row_count - 2 * q),
        columns_(static_cast<int>(target.part.n_out) - tile * kTileOutputs - g),
        stride_(target.part.out_stride),
        to_(static_cast<T*>(target.part.out) +
            target.place(2 * q, int64_t{tile} * kTileOutputs + g)) {}
  __device__ __forceinline__ bool has(int i) const { return i % 2 < rows_ && i / 2 * 8 < columns_; }
  __device__ __forceinline__ T* row(int i) const { return to_ + i % 2 * stride_; }
  static __device__ __forceinline__ int column(int i) { return i / 2 * 8; }
  __device__ __forceinline__ void pass_eight_rows() {
    rows_ -= kGroupRows;
    to_ += kGroupRows * stride_;
    // Or the compiler finds each place anew from the first.
    asm volatile("" : "+l"(to_), "+r"(rows_));
  }

 private:
  int rows_, columns_;  // from its first on
  int64_t stride_;
  T* to_;
};

// The sums of a thread, finished. What they are added to is loaded for many together: no load may
// pass a store, so one by one each would wait for memory.
template <typename T, int kNumbers>
__device__ __forceinline__ void store_sums_as(const Target& target, int tile,
                                              const float (&sums)[kNumbers], int g, int q) {
  constexpr int kTogether = kNumbers < 16 ? kNumbers : 16;
  PlainResults<T> results(target, tile, g, q);
  float bias[2] = {Target::kNothing, Target::kNothing};
  if (target.part.bias != nullptr)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (results.has(2 * half)) bias[half] = target.part.bias[tile * kTileOutputs + g + 8 * half];
#pragma unroll
  for (int first = 0; first < kNumbers; first += kTogether) {
    float before[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) before[i] = Target::kNothing;
    if (target.args.accumulate) {
      PlainResults<T> ahead = results;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (ahead.has(i % 4)) before[i] = load_value(ahead.row(i % 4), ahead.column(i % 4));
        if (i % 4 == 3) ahead.pass_eight_rows();
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (results.has(i % 4))
        store_value(results.row(i % 4), results.column(i % 4),
                    target.finished(sums[first + i], bias[i % 4 / 2], before[i]));
      if (i % 4 == 3) results.pass_eight_rows();
    }
  }
}

template <int kNumbers>
__device__ __forceinline__ void store_sums(const Target& target, int tile,
                                           const float (&sums)[kNumbers], int g, int q) {
  target.args.out_is_bf16 ? store_sums_as<__nv_bfloat16>(target, tile, sums, g, q)
                          : store_sums_as<float>(target, tile, sums, g, q);
}

// The same of gate and up.
template <int kNumbers>
__device__ __forceinline__ void store_gated(const Target& target, int tile,
                                            const float (&gate)[kNumbers],
                                            const float (&up)[kNumbers], int g, int q) {
  const auto store = [&](auto results) {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      if (results.has(i % 4))
        store_value(results.row(i % 4), results.column(i % 4), silu_times(gate[i], up[i]));
      if (i % 4 == 3) results.pass_eight_rows();
    }
  };
  target.args.out_is_bf16 ? store(PlainResults<__nv_bfloat16>(target, tile, g, q))
                          : store(PlainResults<float>(target, tile, g, q));
}

}  // namespace foresail::cuda
