// The one place where a token enters a request's output: stop rules, limits, grammar, text and
// counters hang here. One object per request; a run of accepted tokens is a loop over it. Owner:
// whoever runs the request. Thread rule: one caller.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/stop_matcher.h"
#include "foresail/output.h"
#include "foresail/request.h"
#include "grammar/output_guide.h"
#include "text/detokenizer.h"

namespace foresail {

class Commit {
 public:
  // `end_ids` and `tokenizer` outlive the object; tokenizer may be null: then there is no text.
  Commit(const Request& request, std::span<const int64_t> end_ids, const Tokenizer* tokenizer,
         OutputGuide guide);

  // After an event with `finish` nothing more may be committed.
  Event operator()(int32_t token, bool from_draft, GenerationStats& stats);
  // What may follow what has been committed.
  const OutputGuide& guide() const { return guide_; }

 private:
  // As where end tokens may be drawn: the first that may end the output comes after the minimum.
  bool may_stop(const GenerationStats& stats) const { return stats.output_tokens > min_tokens_; }
  std::string flush_text(bool may_stop);  // what was held back
  Event finish(Event event, FinishReason reason, GenerationStats& stats);

  int64_t min_tokens_, max_tokens_;
  std::span<const int64_t> end_ids_;  // empty when the end token is to be ignored
  std::vector<int32_t> stop_ids_;     // the request's own; never ignored
  std::vector<int32_t> marker_ids_;
  StopMatcher stops_;
  OutputGuide guide_;
  std::unique_ptr<Detokenizer> detokenizer_;
};

// Counters of one verify pass.
void count_verify_pass(GenerationStats& stats, int drafted, int accepted);

}  // namespace foresail
