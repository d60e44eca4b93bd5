#include "runtime/logprobs.h"

#include "kernels/token_logprobs.h"
#include "kernels/token_terms.h"

namespace foresail {

LogprobRow::LogprobRow(std::span<const float> logits, int top_count)
    : log_sum_(log_sum_of(logits)) {
  for (const int32_t id : best_tokens(logits, top_count))
    top_.emplace_back(id, logprob_of(logits[id], log_sum_));
}

TokenLogprobs LogprobRow::of(float logit) && {
  return {.chosen = logprob_of(logit, log_sum_), .top = std::move(top_)};
}

}  // namespace foresail
