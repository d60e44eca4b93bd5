#include "grammar/output_guide.h"

#include <algorithm>

namespace foresail {

bool OutputGuide::is_end(int32_t token) const {
  return std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
}

void OutputGuide::find_allowed(std::vector<uint64_t>& mask) const {
  mask.clear();
  if (!guides()) return;
  const std::span<const uint64_t> allowed = matcher_->allowed(state_);
  mask.assign(allowed.begin(), allowed.end());
  if (!matcher_->can_end(state_)) return;
  for (const int32_t id : end_ids_) mask[id / 64] |= uint64_t{1} << (id % 64);
}

bool OutputGuide::advance(int32_t token) {
  const int32_t next = matcher_->advance(state_, token);
  if (next != GrammarMatcher::kDead) {
    state_ = next;
    ended_ = matcher_->must_end(next);
    return true;
  }
  if (!is_end(token) || !matcher_->can_end(state_)) return false;
  ended_ = true;
  return true;
}

}  // namespace foresail
