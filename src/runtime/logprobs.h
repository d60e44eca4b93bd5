// Log probabilities of a row of logits. Any thread.
#pragma once

#include <span>

#include "foresail/output.h"

namespace foresail {

// What is needed of a row before sampling changes it: its normaliser and its best tokens.
class LogprobRow {
 public:
  // logits [V]; ties of the best: lowest id.
  LogprobRow(std::span<const float> logits, int top_count);
  // `logit` is the token's, before sampling.
  TokenLogprobs of(float logit) &&;

 private:
  double log_sum_;
  std::vector<std::pair<int32_t, float>> top_;
};

}  // namespace foresail
