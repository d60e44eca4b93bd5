#include "engine/commit.h"

#include <algorithm>

namespace foresail {

Commit::Commit(const Request& request, std::span<const int64_t> end_ids, const Tokenizer* tokenizer)
    : max_tokens_(request.max_tokens),
      end_ids_(request.ignore_eos ? std::span<const int64_t>() : end_ids),
      stop_ids_(request.stop_token_ids),
      stops_(request.stops, request.include_stop) {
  if (tokenizer != nullptr)
    detokenizer_ = std::make_unique<Detokenizer>(*tokenizer, request.skip_special);
}

Event Commit::operator()(int32_t token, bool from_draft, GenerationStats& stats) {
  ++stats.output_tokens;
  Event event{.token = token, .from_draft = from_draft};
  const bool is_end = std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end() ||
                      std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
  if (is_end) return finish(std::move(event), FinishReason::kEndToken, stats);
  if (detokenizer_) event.text = stops_.push(detokenizer_->push(token));
  if (stops_.matched()) {
    stats.matched_stop = stops_.matched_stop();
    return finish(std::move(event), FinishReason::kStopString, stats);
  }
  if (stats.output_tokens < max_tokens_) return event;
  return finish(std::move(event), FinishReason::kLength, stats);
}

Event Commit::finish(Event event, FinishReason reason, GenerationStats& stats) {
  if (detokenizer_ && reason != FinishReason::kStopString) {
    event.text += stops_.push(detokenizer_->flush());
    event.text += stops_.flush();
  }
  event.finish = stats.finish = reason;
  return event;
}

void count_verify_pass(GenerationStats& stats, int drafted, int accepted) {
  const auto count = [](std::vector<int64_t>& at, int positions) {
    if (static_cast<int>(at.size()) < positions) at.resize(positions);
    for (int i = 0; i < positions; ++i) ++at[i];
  };
  ++stats.verify_passes;
  stats.drafted += drafted;
  stats.accepted += accepted;
  count(stats.drafted_at, drafted);
  count(stats.accepted_at, accepted);
  stats.accepted_at.resize(stats.drafted_at.size());
}

}  // namespace foresail
