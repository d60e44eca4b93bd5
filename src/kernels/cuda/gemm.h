// Products of rows with packed bf16 weights on tensor cores. One order of sums for every number of
// rows: the inputs are cut into eight segments, each is summed in order, and the eight sums are
// added in order. So a row's result never depends on the rows beside it. (sm90/wide_product.h is
// faster for many rows and adds in another order.)
// Stateless; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace foresail::cuda {

// A packed matrix is a list of tiles of 16 outputs x 16 inputs, 512 bytes each: all tiles of the
// first 16 outputs in the order of their inputs, then those of the next 16. In a tile, lane
// l = 4 * g + q of a warp owns 16 bytes: the inputs 4q..4q+3 of outputs g and g + 8, in the order
// (g, 4q), (g, 4q+1), (g+8, 4q), (g+8, 4q+1), (g, 4q+2), (g, 4q+3), (g+8, 4q+2), (g+8, 4q+3).
// That is the A operand of mma.m16n8k16 with the inputs of a tile renamed, which changes no sum's
// set of terms.
constexpr int kTileOutputs = 16;
constexpr int kTileInputs = 16;
constexpr int kTileBytes = kTileOutputs * kTileInputs * 2;

constexpr int64_t tile_count(int64_t size) {
  return (size + kTileInputs - 1) / kTileInputs;
}
constexpr int64_t packed_bytes(int64_t n_out, int64_t n_in) {
  return tile_count(n_out) * tile_count(n_in) * kTileBytes;
}

enum class Element : int { kF32, kBF16, kF16, kF8E4M3 };

// Source [n_out, n_in], or [n_in, n_out] if transposed, with `stride` elements between its rows;
// `out_begin` is a multiple of 16 and says which outputs of the matrix these are.
struct PackArgs {
  const void* source = nullptr;
  Element element = Element::kBF16;
  int64_t stride = 0;
  bool transposed = false;
  int64_t n_out = 0;
  int64_t n_in = 0;
};
void pack_tiles(cudaStream_t stream, const PackArgs& args, void* packed);

// Rows of one expert: pairs [begin, begin + count) of the list ordered by expert; and its weights.
struct alignas(16) ExpertTile {
  int32_t expert;
  int32_t begin;
  int32_t count;  // 0: nothing
  const void* gate_up;
  const void* down;
};

// Rows that a block of 16 outputs takes at once, where a kernel is for few rows only.
constexpr int kFewRows = 8;

// A second matrix in the same launch. Its rows are the first `rows` of x, without a list, or has an
// x of its own; what else is done to results is done to its own too, but see `plain`.
struct BesideArgs {
  const void* weight = nullptr;  // null: none
  int64_t n_out = 0;
  int64_t rows = 0;
  const void* x = nullptr;  // of the first's element; not where rows are gated or normed
  int64_t x_stride = 0;
  int64_t n_in = 0;  // where it has an x
  const float* bias = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool plain = false;  // not gated where the first is: only where takes_beside() says so
};

// Results as the rows of a product of sm90/wide_product.h, split into bf16 terms as it reads them.
struct SplitOut {
  void* to = nullptr;  // null: results are stored as they are
  int tile_rows = 0;   // of that product
  int chunks = 0;      // 64 of its inputs each
};

struct GemmArgs {
  // One of: `weight`; or `weights` of `groups` matrices of one shape (heads); or tile_limit `tiles`
  // with the weights of each.
  const void* weight = nullptr;
  const void* const* weights = nullptr;
  int groups = 1;
  const ExpertTile* tiles = nullptr;
  bool tiles_down = false;  // the tiles' `down`, otherwise their `gate_up`
  int tile_limit = 0;
  int tile_rows = 0;        // most rows of a tile: a value of expert_tile_rows()
  bool wide_tiles = false;  // or of wide_tile_rows(): the tiles are for sm90/wide_product.h

  int64_t n_out = 0;
  int64_t n_in = 0;
  int64_t rows = 0;

  // Row t of group h: x + (row * x_stride + h * x_group) elements, row = x_rows[t] or t. f32 rows
  // are split into two bf16 terms (16 bits of mantissa); bf16 rows are taken as they are.
  const void* x = nullptr;
  bool x_is_bf16 = false;
  int64_t x_stride = 0;
  int64_t x_group = 0;
  const int32_t* x_rows = nullptr;

  // out = (accumulate ? out : 0) + scale * (x·Wᵀ + bias)
  void* out = nullptr;
  bool out_is_bf16 = false;
  int64_t out_stride = 0;
  int64_t out_group = 0;
  bool accumulate = false;
  float scale = 1.0f;
  const float* bias = nullptr;

  // The rows of x are normed first (rows.h); only where norms_rows() says so.
  const float* norm_weight = nullptr;
  float norm_eps = 0.0f;
  // out [rows, n_out / 2] = silu(first half of the outputs) * second half, and nothing else of the
  // above; groups == 1, only where gates_rows() says so, or of bf16 rows wide_gates_rows() of
  // sm90/wide_product.h.
  bool gated = false;
  SplitOut split_out;  // in place of `out`, where can_split_for() of sm90/wide_product.h says so
  BesideArgs beside;
};
// A product whose rows lie split for sm90/wide_product.h already.
struct SplitProduct {
  GemmArgs args;
  const void* rows = nullptr;
};

void gemm(cudaStream_t stream, const GemmArgs& args);
// Whether rows are aligned to four elements, those of `beside` too.
bool has_vector_rows(const GemmArgs& args);
bool norms_rows(const GemmArgs& args);
bool gates_rows(const GemmArgs& args);

// The second product of a launch (`beside`) as one of its own.
GemmArgs beside_product(const GemmArgs& args);

// Rows of a tile for so many pairs over so many experts.
int expert_tile_rows(int64_t pairs, int64_t experts);

}  // namespace foresail::cuda
