// How many drafts a target accepts, per position, over a set of prompts.
#pragma once

#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "foresail/request.h"
#include "text/tokenizer.h"

namespace foresail {

struct Acceptance {
  int steps = 0;
  int64_t prompts = 0;
  int64_t output_tokens = 0;
  int64_t verify_passes = 0;
  int64_t draft_passes = 0;  // of these, those that had drafts
  int64_t accepted = 0;
  std::vector<int64_t> drafted_at, accepted_at;  // [draft position]
  // Share of output tokens that end a 4-gram already seen in the same output: text that loops is
  // easy to draft, so acceptance means little without this beside it.
  double repeated_4gram_share = 0.0;

  double accept_length() const;
  // Accepted at a position over drafted there: 0 when a position was never drafted.
  double rate_at(int position) const;
};

// `steps` drafts per iteration, at most the model's own number, which must not be adaptive. Prompt
// i is drawn with seed request.sampling.seed + i.
Acceptance measure_acceptance(LoadedModel& model, const Tokenizer& tokenizer,
                              const std::vector<std::string>& prompts, const Request& request,
                              int steps);

}  // namespace foresail
