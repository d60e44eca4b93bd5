#include "kernels/token_logprobs.h"

#include <algorithm>
#include <numeric>

#include "kernels/token_terms.h"

namespace foresail {

double log_sum_of(std::span<const float> logits) {
  uint32_t largest = 0;
  for (const float logit : logits) largest = std::max(largest, rank_key(logit));
  uint64_t mass = 0;
  for (const float logit : logits) mass += logprob_mass(rank_key(logit), largest);
  return log_of_mass(largest, mass);
}

std::vector<int32_t> best_tokens(std::span<const float> logits, int64_t count) {
  const auto kept = static_cast<size_t>(std::min<int64_t>(count, std::ssize(logits)));
  if (kept == 0) return {};
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const uint32_t of_a = rank_key(logits[a]), of_b = rank_key(logits[b]);
                      return of_a != of_b ? of_a > of_b : a < b;
                    });
  ids.resize(kept);
  return ids;
}

}  // namespace foresail
