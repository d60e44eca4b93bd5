// How far something that takes a while is: one line on stderr that is drawn over again and goes
// when it ends. Where stderr is no terminal nothing is drawn.
#pragma once

#include <chrono>
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
  // For what moves faster than anyone reads: whether it is shown, and was not within a tenth of a
  // second.
  bool is_due() const;
  void clear();

 private:
  const bool is_shown_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point drawn_at_{};
};

}  // namespace foresail
