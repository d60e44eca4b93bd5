// What is said on stderr. Nobody may be there to read it (a full disk, a log reader that has died,
// a closed descriptor), and the work goes on all the same: fmt::print would throw, and the signal
// of a pipe without a reader would end the process.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace foresail {

void write_to_stderr(std::string_view text);

template <typename... Args>
void tell(fmt::format_string<Args...> format, Args&&... args) {
  write_to_stderr(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace foresail
