#include "kernels/ref/ranked_tokens.h"

#include <algorithm>

#include "kernels/token_truncation.h"

namespace foresail {

std::vector<int32_t> ranked_drawable_tokens(std::span<const float> logits, const TokenDraw& draw) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < static_cast<int32_t>(logits.size()); ++i)
    if (rank_key(logits[i]) > 0) ids.push_back(i);
  const bool truncates = draw.top_k > 0 || draw.top_p < 1.0f || draw.min_p > 0.0f;
  if (draw.inverse_temperature == 0.0 || !truncates || ids.empty()) return ids;
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (draw.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(draw.top_k)));
  const auto weight = [&](int32_t id) {
    return token_weight(logits[id], logits[ids[0]], draw.inverse_temperature);
  };
  uint64_t total = 0, mass = 0;
  for (const int32_t id : ids) total += token_mass(weight(id));
  size_t kept = 0;
  while (kept < ids.size() &&
         (kept == 0 || draw.top_p >= 1.0f || mass < mass_needed(draw.top_p, total)) &&
         weight(ids[kept]) >= static_cast<double>(draw.min_p))
    mass += token_mass(weight(ids[kept++]));
  ids.resize(kept);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace foresail
