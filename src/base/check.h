// Broken invariants: print the values and abort. Never used on input from outside.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>

namespace foresail {

[[noreturn]] inline void check_failed(const char* file, int line, const char* condition,
                                      const std::string& detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s %s\n", file, line, condition, detail.c_str());
  std::abort();
}

}  // namespace foresail

// FORESAIL_CHECK(a == b, "a {} b {}", a, b)
#define FORESAIL_CHECK(condition, ...)                                                    \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::foresail::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)
