// What every layer of one forward pass reads: the batch, the tools, the constants of the model.
#pragma once

#include "kernels/kernel_set.h"
#include "model/forward_batch.h"
#include "model/scratch.h"

namespace foresail {

struct Pass {
  KernelSet& kernels;
  Arena& arena;
  std::span<const int32_t> positions;  // [T]
  std::span<const int32_t> slots;      // [T]
  std::span<const SequenceRows> sequences;
  AttentionPath path;
  RopeTable rope;
  const float* query_scale = nullptr;  // [T]; null: 1

  int64_t row_count() const { return static_cast<int64_t>(positions.size()); }
  MatrixView f32(int64_t cols) { return scratch_matrix(arena, DType::kF32, row_count(), cols); }
  MatrixView act(int64_t cols) {
    return scratch_matrix(arena, kernels.act_dtype(), row_count(), cols);
  }
};

}  // namespace foresail
