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

// Cached keys of one request that an expanded pass up-projects and attends to as one block; every
// row of the request sees all of them.
struct PrefixPart {
  int32_t sequence = 0;  // index into the sequences of the pass
  int32_t key_begin = 0;
  int32_t key_count = 0;
  bool operator==(const PrefixPart&) const = default;
};

struct ForwardBatch {
  std::span<const int32_t> token_ids;  // [T]
  std::span<const int32_t> positions;  // [T]
  std::span<const int32_t> slots;      // [T] place in the cache; negative: not written
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  std::span<const HiddenCapture> captures;
  AttentionPath path = AttentionPath::kAbsorbed;
  // Expanded: together the keys before each request's own rows, in ascending order per request.
  std::span<const PrefixPart> prefix_parts;
};

}  // namespace foresail
