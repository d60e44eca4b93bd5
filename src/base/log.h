// A line for whoever listens; nothing is formatted when nobody does.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "foresail/log.h"

namespace foresail {

template <typename... Args>
void write_log(const LogCallback& log, LogLevel level, fmt::format_string<Args...> format,
               Args&&... args) {
  if (log) log(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace foresail
