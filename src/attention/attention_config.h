// What decides the attention of every pass, fixed at start-up. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/model_config.h"
#include "kernels/attention_rates.h"
#include "model/forward_batch.h"

namespace foresail {

// paged: block table rows as they are. indexed: a flat list of key slots per pass. reference: paged
// keys, attention in float64 (slow; the oracle).
enum class AttentionBackend { kPaged, kIndexed, kReference };

// What a backend reads beside kv_end. It gets exactly that.
struct BackendMetadata {
  bool key_index = false;     // kv_indptr and kv_indices, page size 1
  bool ragged_plans = false;  // per chunk of a cached prefix in expanded passes
};
constexpr BackendMetadata metadata_of(AttentionBackend backend) {
  const bool indexed = backend == AttentionBackend::kIndexed;
  return {.key_index = indexed, .ragged_plans = indexed};
}

std::string_view backend_name(AttentionBackend backend);
// Own names and those other engines use for the same metadata. Throws Error{kUsage} naming them.
AttentionBackend parse_attention_backend(const std::string& name);
// "auto" is unset: the cheaper form for each chunk. Throws Error{kUsage} naming the choices.
std::optional<AttentionPath> parse_attention_path(const std::string& name);

struct AttentionConfig {
  AttentionBackend backend = AttentionBackend::kPaged;
  AttentionBackend fallback_backend = AttentionBackend::kPaged;
  int page_size = 64;                         // tokens
  std::optional<AttentionPath> prefill_path;  // unset: the cheaper one
  AttentionRates rates;                       // of the device, by which it is the cheaper one
  bool disable_chunked_prefix_cache = false;
  bool segmented_prefill = false;  // prefill runs inside a segmented graph
  // Keys of a cached prefix that are up-projected at a time: bounds the workspace, and at this size
  // the up-projection is a large matrix product.
  int32_t prefix_chunk_keys = 4096;
  // Work that no kernel reads, done only to measure what leaving it out is worth.
  bool skip_draft_kv_indices = true;
  bool skip_mha_chunk_metadata = true;
};

}  // namespace foresail
