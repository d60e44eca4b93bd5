// The one decision about a pass's attention: a pure function of what the pass is and how the engine
// is configured. Layers and backends read the plan; nobody decides again.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/attention_config.h"

namespace foresail {

// Verify with one row per request is plain decoding. A draft loop is all its steps: step i sees
// i more keys than step 0, an addition that needs no plan.
enum class PassKind { kPrefill, kVerify, kDraftExtend, kDraftLoop };
std::string_view pass_name(PassKind kind);

// Lengths of one request in a pass, in tokens. A draft loop states those of its first step.
struct PassLengths {
  int32_t row_count = 0;
  int32_t kv_end = 0;  // keys visible to the last row; 0: padding
  int32_t prefix_len() const { return kv_end - row_count; }
};

struct PassShape {
  PassKind kind = PassKind::kPrefill;
  std::span<const PassLengths> requests;
};

// One block of cached prefixes: at most prefix_chunk_keys of each request that has so many.
struct PrefixChunk {
  std::vector<PrefixPart> parts;  // PrefixPart::sequence is the request's index in the pass
  bool operator==(const PrefixChunk&) const = default;
};

struct AttentionPlan {
  PassKind kind = PassKind::kPrefill;
  AttentionBackend backend = AttentionBackend::kPaged;
  AttentionPath path = AttentionPath::kAbsorbed;
  bool fallback = false;  // expanded was out of the question
  bool key_index = false;
  bool ragged_plans = false;               // one per chunk below
  std::vector<PrefixChunk> prefix_chunks;  // expanded passes over a cached prefix

  bool operator==(const AttentionPlan&) const = default;
};

// Whether a prefill pass must run absorbed, on the fallback backend.
constexpr bool must_fall_back(bool chunked_prefix_disabled, bool any_prefix, bool segmented) {
  return (chunked_prefix_disabled && any_prefix) || segmented;
}

// `model` gives the dimensions of the cost model.
AttentionPlan plan_attention(const PassShape& pass, const AttentionConfig& config,
                             const ModelConfig& model);

// Indices of the requests of a prefill step, pass by pass: at most one pass of expanded requests
// whose products round, one of those whose products don't, one of absorbed requests. So the bits of
// each request depend on its own chunk only, and weights are read once a pass.
std::vector<std::vector<size_t>> split_prefill(std::span<const PassLengths> requests,
                                               const AttentionConfig& config,
                                               const ModelConfig& model);

// One line: pass, backend, path, metadata.
std::string describe(const AttentionPlan& plan);

}  // namespace foresail
