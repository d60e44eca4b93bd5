// Finds stop strings in streamed text, holding back what may still become one.
#pragma once

#include <string>
#include <vector>

namespace foresail {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Returns the text that is now certain. Once a stop has matched, text after it is swallowed.
  std::string push(const std::string& text);
  // The held-back rest, when the stream ends without a stop.
  std::string flush();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace foresail
