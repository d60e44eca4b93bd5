#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace foresail {

std::string StopMatcher::push(const std::string& text) {
  if (matched_) return {};
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_)
    if (!stop.empty()) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    matched_ = true;
    std::string certain = held_.substr(0, first);
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
