// What is said on stderr. Nobody may be there to read it (a full disk, a log reader that has died,
// a closed descriptor), and the work goes on all the same: fmt::print would throw.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace foresail {

template <typename... Args>
void tell(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace foresail
