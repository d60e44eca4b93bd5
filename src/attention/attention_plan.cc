#include "attention/attention_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "attention/attention_path.h"
#include "model/pass.h"

namespace foresail {
namespace {

bool any_prefix(std::span<const PassLengths> requests) {
  return std::any_of(requests.begin(), requests.end(),
                     [](const PassLengths& request) { return request.prefix_len() > 0; });
}

std::vector<PrefixChunk> list_chunks(std::span<const PassLengths> requests, int32_t chunk_keys) {
  std::vector<PrefixChunk> chunks;
  for (int32_t begin = 0;; begin += chunk_keys) {
    PrefixChunk chunk;
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i].prefix_len() > begin)
        chunk.parts.push_back({static_cast<int32_t>(i), begin,
                               std::min(chunk_keys, requests[i].prefix_len() - begin)});
    if (chunk.parts.empty()) return chunks;
    chunks.push_back(std::move(chunk));
  }
}

}  // namespace

std::string_view pass_name(PassKind kind) {
  switch (kind) {
    case PassKind::kPrefill:
      return "prefill";
    case PassKind::kVerify:
      return "verify";
    case PassKind::kDraftExtend:
      return "draft-extend";
    case PassKind::kDraftLoop:
      return "draft-loop";
  }
  return "";
}

AttentionPlan plan_attention(const PassShape& pass, const AttentionConfig& config,
                             const ModelConfig& model) {
  AttentionPlan plan{.kind = pass.kind, .backend = config.backend};
  if (pass.kind == PassKind::kPrefill) {
    plan.fallback = must_fall_back(config.disable_chunked_prefix_cache, any_prefix(pass.requests),
                                   config.segmented_prefill);
    if (plan.fallback)
      plan.backend = config.fallback_backend;
    else
      plan.path = config.prefill_path.value_or(cheaper_path(model, pass.requests, config));
  }
  if (plan.path == AttentionPath::kExpanded)
    plan.prefix_chunks = list_chunks(pass.requests, config.prefix_chunk_keys);

  const BackendMetadata reads = metadata_of(plan.backend);
  plan.key_index =
      reads.key_index || (pass.kind == PassKind::kDraftLoop && !config.skip_draft_kv_indices);
  plan.ragged_plans =
      !plan.prefix_chunks.empty() && (reads.ragged_plans || !config.skip_mha_chunk_metadata);
  return plan;
}

std::vector<std::vector<size_t>> split_prefill(std::span<const PassLengths> requests,
                                               const AttentionConfig& config,
                                               const ModelConfig& model) {
  std::vector<size_t> rounded, exact, absorbed;
  for (size_t i = 0; i < requests.size(); ++i) {
    const AttentionPlan alone =
        plan_attention({PassKind::kPrefill, requests.subspan(i, 1)}, config, model);
    if (alone.path == AttentionPath::kAbsorbed)
      absorbed.push_back(i);
    else
      (rounds(requests[i].row_count) ? rounded : exact).push_back(i);
  }
  std::vector<std::vector<size_t>> passes;
  for (std::vector<size_t>* members : {&rounded, &exact, &absorbed})
    if (!members->empty()) passes.push_back(std::move(*members));
  return passes;
}

std::string describe(const AttentionPlan& plan) {
  std::string metadata = plan.key_index ? "key index" : "none";
  if (!metadata_of(plan.backend).key_index && plan.key_index) metadata += " (unread)";
  if (!plan.prefix_chunks.empty())
    metadata += fmt::format(", {} chunks", plan.prefix_chunks.size());
  if (plan.ragged_plans)
    metadata +=
        metadata_of(plan.backend).ragged_plans ? ", ragged plans" : ", ragged plans (unread)";
  return fmt::format("{:<12} {} {}{}; builds: {}", pass_name(plan.kind), backend_name(plan.backend),
                     plan.path == AttentionPath::kAbsorbed ? "absorbed" : "expanded",
                     plan.fallback ? " (fallback)" : "", metadata);
}

}  // namespace foresail
