// What every layer of one forward pass reads: the batch, the tools, the constants of the model.
#pragma once

#include <algorithm>

#include "kernels/kernel_set.h"
#include "model/forward_batch.h"
#include "model/scratch.h"

namespace foresail {

// Rows of a request from which its pass is limited by arithmetic: beyond it GEMM inputs are rounded
// to bf16 (with bf16 weights), below it they stay in f32, which costs nothing while weights stream
// from memory. Only expanded passes may round: an absorbed row's bits must not depend on its pass,
// and those of an expanded row depend on its own chunk only.
constexpr int64_t kRoundingRows = 256;
constexpr bool rounds(int64_t row_count) {
  return row_count >= kRoundingRows;
}

struct Pass {
  KernelSet& kernels;
  Arena& arena;
  std::span<const int32_t> positions;  // [T]
  std::span<const int32_t> slots;      // [T]
  std::span<const SequenceRows> sequences;
  AttentionPath path;
  RopeTable rope;
  const float* query_scale = nullptr;  // [T]; null: 1
  std::span<const PrefixPart> prefix_parts;

  int64_t row_count() const { return static_cast<int64_t>(positions.size()); }
  MatrixView f32(int64_t cols) { return scratch_matrix(arena, DType::kF32, row_count(), cols); }
  DType act_dtype() const {
    const bool all_round = std::ranges::all_of(
        sequences, [](const SequenceRows& sequence) { return rounds(sequence.row_count); });
    return path == AttentionPath::kExpanded && all_round ? kernels.act_dtype() : DType::kF32;
  }
  MatrixView act(int64_t cols) { return scratch_matrix(arena, act_dtype(), row_count(), cols); }
};

}  // namespace foresail
