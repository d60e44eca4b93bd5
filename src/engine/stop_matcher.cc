#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace foresail {

std::string StopMatcher::push(const std::string& text, bool may_stop) {
  if (matched()) return {};
  const size_t old = held_.size();
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    if (stop.empty() || !may_stop) continue;
    // Only what ends in the new text: one that ended before was there when none might stop.
    const size_t at = held_.find(stop, old + 1 > stop.size() ? old + 1 - stop.size() : 0);
    if (at >= first) continue;
    first = at;
    matched_stop_ = stop;
  }
  if (matched()) {
    std::string certain = held_.substr(0, first + (include_stop_ ? matched_stop_.size() : 0));
    held_.clear();
    return certain;
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.empty() ? 0 : stop.size() - 1, held_.size()); length > keep;
         --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) {
        keep = length;
        break;
      }
    }
  }
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::flush() {
  return std::exchange(held_, {});
}

}  // namespace foresail
