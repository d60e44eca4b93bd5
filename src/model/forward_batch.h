// What one forward pass works on: rows of tokens, and which rows belong to which request.
// Spans are borrowed for the duration of the call.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "kernels/kernel_set.h"

namespace foresail {

// What decides the operations of a pass, mixed into one number (PassInputs::work): whose pass it
// is, which caches it reads, where it leaves states.
class PassWork {
 public:
  explicit PassWork(std::span<const LatentCache> caches) {
    for (const LatentCache& cache : caches) mix(cache.data);
    mix(static_cast<uint64_t>(caches[0].page_size));
  }
  PassWork& mix(const void* address) { return mix(reinterpret_cast<uintptr_t>(address)); }
  PassWork& mix(uint64_t value) {
    value_ = (value_ ^ value) * 0x9E3779B97F4A7C15ull;
    value_ ^= value_ >> 29;
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 1;
};

// Of a model or head: no two ever have the same, so one that is gone is never taken for another.
inline uint64_t new_work_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

enum class AttentionPath { kAbsorbed, kExpanded };

// Copy of the residual stream entering `layer`, all rows. layer_count: leaving the last layer;
// kAfterFinalNorm: the state that the vocabulary head and MTP layers read.
struct HiddenCapture {
  static constexpr int kAfterFinalNorm = -1;
  int layer = 0;
  MatrixView out;  // f32 [T, H] in the memory of the kernels
};

// Cached keys of one request that an expanded pass up-projects and attends to as one block; every
// row of the request sees all of them.
struct PrefixPart {
  int32_t sequence = 0;  // index into the sequences of the pass
  int32_t key_begin = 0;
  int32_t key_count = 0;
  bool operator==(const PrefixPart&) const = default;
};

// Where a pass leaves the tokens that it chooses, in the memory of the kernels; as
// KernelSet::choose_tokens and accept_drafts say. Without draws it chooses none.
struct ChoiceBatch {
  std::span<const TokenDraw> draws;  // [logit_rows]
  int32_t* tokens = nullptr;         // [logit_rows]
  // [logit_rows] What changes logits first or is told of them, as choose_with_terms; or empty.
  std::span<const DrawTerms> terms;
  TokenTerms* term_table = nullptr;
  const uint64_t* masks = nullptr;
  RowLogprobs* logprobs = nullptr;  // [logit_rows] where a row wants them
  // Not empty: all rows are logit rows, and drafts among their tokens are accepted.
  std::span<const int32_t> pretended;  // [sequences]
  int32_t* next_tokens = nullptr;      // [T]
  int32_t* lag = nullptr;              // [sequences]
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
  ChoiceBatch choice = {};
  PassCarry carry = {};
};

}  // namespace foresail
