// Prints generated text as it comes. On a terminal, text of accepted drafts is green: what
// speculation gave for nothing is visible as it happens.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "foresail/output.h"

namespace foresail {

class TokenPrinter {
 public:
  void operator()(const Event& event) const {
    if (event.text.empty()) return;
    if (colour_ && event.from_draft)
      fmt::print("\033[32m{}\033[0m", event.text);
    else
      fmt::print("{}", event.text);
    std::fflush(stdout);
  }

 private:
  // https://no-color.org: any non-empty value turns colour off.
  static bool wants_colour() {
    const char* no_color = std::getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0');
  }
  bool colour_ = wants_colour();
};

}  // namespace foresail
