#include "apps/progress_line.h"
#include "apps/standard_error.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

namespace foresail {

ProgressLine::ProgressLine(bool wanted) : is_shown_(wanted && isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(std::string_view text) {
  if (!is_shown_) return;
  tell("\r{}\033[K", text);
  drawn_ = true;
  drawn_at_ = std::chrono::steady_clock::now();
}

bool ProgressLine::is_due() const {
  return is_shown_ &&
         std::chrono::steady_clock::now() - drawn_at_ >= std::chrono::milliseconds(100);
}

void ProgressLine::clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

}  // namespace foresail
