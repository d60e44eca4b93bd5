#include "engine/commit.h"

#include <algorithm>

#include "base/check.h"

namespace foresail {

Commit::Commit(const Request& request, std::span<const int64_t> end_ids, const Tokenizer* tokenizer,
               OutputGuide guide)
    : min_tokens_(request.min_tokens),
      max_tokens_(request.max_tokens),
      end_ids_(request.ignore_eos ? std::span<const int64_t>() : end_ids),
      stop_ids_(request.stop_token_ids),
      marker_ids_(request.marker_ids),
      stops_(request.stops, request.include_stop),
      guide_(std::move(guide)) {
  if (tokenizer != nullptr)
    detokenizer_ = std::make_unique<Detokenizer>(*tokenizer, request.skip_special);
}

Event Commit::operator()(int32_t token, bool from_draft, GenerationStats& stats) {
  ++stats.output_tokens;
  Event event{.token = token, .from_draft = from_draft};
  const bool stops = may_stop(stats);
  const bool is_end =
      stops && (std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end() ||
                std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end());
  const bool allowed = !guide_.guides() || guide_.advance(token);
  if (is_end) return finish(std::move(event), FinishReason::kEndToken, stats);
  FORESAIL_CHECK(allowed, "token {} was drawn against the grammar", token);
  const bool is_marker =
      std::find(marker_ids_.begin(), marker_ids_.end(), token) != marker_ids_.end();
  if (detokenizer_ && is_marker)
    event.text = flush_text(stops);
  else if (detokenizer_)
    event.text = stops_.push(detokenizer_->push(token), stops);
  if (stops_.matched()) {
    stats.matched_stop = stops_.matched_stop();
    return finish(std::move(event), FinishReason::kStopString, stats);
  }
  if (guide_.ended()) return finish(std::move(event), FinishReason::kComplete, stats);
  if (stats.output_tokens < max_tokens_) return event;
  return finish(std::move(event), FinishReason::kLength, stats);
}

std::string Commit::flush_text(bool may_stop) {
  const std::string text = stops_.push(detokenizer_->flush(), may_stop);
  return text + stops_.flush();
}

Event Commit::finish(Event event, FinishReason reason, GenerationStats& stats) {
  if (detokenizer_ && reason != FinishReason::kStopString)
    event.text += flush_text(may_stop(stats));
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
