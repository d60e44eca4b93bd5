// What one forward pass works on: rows of tokens, and which rows belong to which request.
// Spans are borrowed for the duration of the call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernel_set.h"

namespace foresail {

enum class AttentionPath { kAbsorbed, kExpanded };

// Copy of the residual stream entering `layer`, all rows. layer_count: leaving the last layer;
// kAfterFinalNorm: the state that the vocabulary head and MTP layers read.
struct HiddenCapture {
  static constexpr int kAfterFinalNorm = -1;
  int layer = 0;
  MatrixView out;  // f32 [T, H]
};

struct ForwardBatch {
  std::span<const int32_t> token_ids;  // [T]
  std::span<const int32_t> positions;  // [T]
  std::span<const int32_t> slots;      // [T] place in the cache; negative: not written
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  std::span<const HiddenCapture> captures;
  AttentionPath path = AttentionPath::kAbsorbed;
};

}  // namespace foresail
