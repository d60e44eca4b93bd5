// How far something that takes a while is: one line on stderr that is drawn over again and goes
// when it ends. Where stderr is no terminal nothing is drawn.
#pragma once

#include <string_view>

namespace foresail {

class ProgressLine {
 public:
  explicit ProgressLine(bool wanted = true);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool is_shown() const { return is_shown_; }
  void show(std::string_view text);
  void clear();

 private:
  const bool is_shown_;
  bool drawn_ = false;
};

}  // namespace foresail
