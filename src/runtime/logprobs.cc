#include "runtime/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace foresail {

LogprobRow::LogprobRow(std::span<const float> logits, int top_count) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  log_sum_ = largest + std::log(sum);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<int64_t>(top_count, static_cast<int64_t>(ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (auto id = ids.begin(); id != end; ++id)
    top_.emplace_back(*id, static_cast<float>(logits[*id] - log_sum_));
}

TokenLogprobs LogprobRow::of(float logit) && {
  return {.chosen = static_cast<float>(logit - log_sum_), .top = std::move(top_)};
}

}  // namespace foresail
