// How rows lie for the warpgroup products of this folder: tile after tile of rows, in it 64 inputs
// after the other, of them first the high and then the low bf16 terms (the only ones of bf16 rows),
// as they will lie in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm.h"

namespace foresail::cuda {

constexpr int kChunkTiles = 4;    // of inputs: 64, a line of the swizzle
constexpr int kGroupRows = 8;     // rows of an atom of the swizzle
constexpr int kAtomBytes = 1024;  // 64 inputs of 8 rows

constexpr int terms_of(bool is_bf16) {
  return is_bf16 ? 1 : 2;
}
// 64 inputs of a tile of so many rows.
constexpr int term_bytes(int tile_rows) {
  return tile_rows / kGroupRows * kAtomBytes;
}
constexpr int64_t chunk_count(const GemmArgs& args) {
  return (tile_count(args.n_in) + kChunkTiles - 1) / kChunkTiles;
}
constexpr int64_t row_tiles(const GemmArgs& args, int tile_rows) {
  return args.tiles != nullptr ? args.tile_limit : (args.rows + tile_rows - 1) / tile_rows;
}

}  // namespace foresail::cuda
