// Prints generated text as it comes. On a terminal, text of accepted drafts is green: what
// speculation gave for nothing is visible as it happens; and what a model writes gives it no
// orders.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/utf8.h"
#include "foresail/output.h"

namespace foresail {

class TokenPrinter {
 public:
  void operator()(const Event& event) const {
    if (event.text.empty()) return;
    const std::string text = terminal_ ? for_terminal(event.text) : event.text;
    if (colour_ && event.from_draft)
      fmt::print("\033[32m{}\033[0m", text);
    else
      fmt::print("{}", text);
    std::fflush(stdout);
  }

 private:
  // https://no-color.org: any non-empty value turns colour off.
  static bool wants_colour() {
    const char* no_color = std::getenv("NO_COLOR");
    return no_color == nullptr || *no_color == '\0';
  }
  bool terminal_ = isatty(STDOUT_FILENO) != 0;
  bool colour_ = terminal_ && wants_colour();
};

}  // namespace foresail
