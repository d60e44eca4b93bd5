// Finds stop strings in streamed text, holding back what may still become one.
#pragma once

#include <string>
#include <vector>

namespace foresail {

class StopMatcher {
 public:
  // `include_stop`: the stop that matched is part of the text.
  explicit StopMatcher(std::vector<std::string> stops, bool include_stop = false)
      : stops_(std::move(stops)), include_stop_(include_stop) {}

  // Returns the text that is now certain. Once a stop has matched, text after it is swallowed. A
  // stop that is complete with text that may not stop has not matched, nor does it later.
  std::string push(const std::string& text, bool may_stop);
  // The held-back rest, when the stream ends without a stop.
  std::string flush();
  bool matched() const { return !matched_stop_.empty(); }
  const std::string& matched_stop() const { return matched_stop_; }

 private:
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
  std::string matched_stop_;
};

}  // namespace foresail
