#include "server/api/projection.h"

#include <fmt/core.h>

#include "base/json.h"

namespace foresail {

Usage GenerationRecord::usage() const {
  Usage usage;
  for (const std::vector<int32_t>& prompt : prompts)
    usage.prompt_tokens += static_cast<int64_t>(prompt.size());
  for (size_t i = 0; i < choices.size(); ++i) {
    usage.completion_tokens += static_cast<int64_t>(choices[i].ids.size());
    usage.reasoning_tokens += choices[i].reasoning_tokens;
    if (i % choices_per_prompt == 0) usage.cached_tokens += choices[i].stats.cached_tokens;
  }
  return usage;
}

OrderedJson usage_json(const Usage& usage) {
  return object_of(
      {{"prompt_tokens", usage.prompt_tokens},
       {"completion_tokens", usage.completion_tokens},
       {"total_tokens", usage.total_tokens()},
       {"prompt_tokens_details", object_of({{"cached_tokens", usage.cached_tokens}})},
       {"completion_tokens_details", object_of({{"reasoning_tokens", usage.reasoning_tokens}})}});
}

OrderedJson meta_info_json(const GenerationRecord& record, const Choice& choice) {
  const GenerationStats& stats = choice.stats;
  OrderedJson finish;
  if (choice.finish) {
    finish["type"] = finish_reason_name(*choice.finish);
    if (*choice.finish == FinishReason::kLength) finish["length"] = choice.ids.size();
    if (*choice.finish == FinishReason::kStopString) finish["matched"] = stats.matched_stop;
    if (*choice.finish == FinishReason::kEndToken) finish["matched"] = choice.ids.back();
  }
  OrderedJson meta = object_of({{"id", record.id},
                                {"finish_reason", finish},
                                {"prompt_tokens", record.prompts[choice.prompt].size()},
                                {"completion_tokens", choice.ids.size()},
                                {"cached_tokens", stats.cached_tokens},
                                {"e2e_latency", choice.elapsed_s},
                                {"ttft", stats.ttft_s},
                                {"queue_time", std::max(0.0, stats.ttft_s - stats.prefill_s)}});
  if (stats.drafted == 0) return meta;
  // [k]: passes that verified drafts and accepted k of them.
  std::vector<int64_t> histogram(stats.accepted_at.size() + 1);
  for (size_t k = 0; k < histogram.size(); ++k) {
    const int64_t at_least_k = k == 0 ? stats.draft_passes() : stats.accepted_at[k - 1];
    histogram[k] = at_least_k - (k < stats.accepted_at.size() ? stats.accepted_at[k] : 0);
  }
  meta["spec_accept_length"] = stats.accept_length();
  meta["spec_accept_rate"] =
      static_cast<double>(stats.accepted) / static_cast<double>(stats.drafted);
  meta["spec_verify_ct"] = stats.verify_passes;
  meta["spec_num_correct_drafts"] = stats.accepted;
  meta["spec_num_proposed_drafts"] = stats.drafted;
  meta["spec_accept_histogram"] = histogram;
  return meta;
}

std::string event(std::string_view data) {
  return fmt::format("data: {}\n\n", data);
}

std::string_view finish_json(const std::optional<FinishReason>& finish) {
  if (!finish) return "null";
  switch (*finish) {
    case FinishReason::kLength:
      return "\"length\"";
    case FinishReason::kAborted:
      return "\"abort\"";
    case FinishReason::kFailed:
      return "\"error\"";
    default:
      return "\"stop\"";
  }
}

}  // namespace foresail
