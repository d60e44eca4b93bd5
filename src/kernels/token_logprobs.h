// Log probabilities of a row of logits on the host, by the arithmetic of token_terms.h. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foresail {

// Logarithm of the sum of e^logit; what is no number adds nothing.
double log_sum_of(std::span<const float> logits);
// Best first, ties: lowest id; at most as many as there are.
std::vector<int32_t> best_tokens(std::span<const float> logits, int64_t count);

}  // namespace foresail
