#include "apps/engine_log.h"

#include <spdlog/spdlog.h>

#include "apps/field_names.h"

namespace foresail {
namespace {

spdlog::level::level_enum logger_level(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

LogCallback engine_log() {
  return [](LogLevel level, const std::string& message) {
    spdlog::log(logger_level(level), "{}", with_flags(message));
  };
}

}  // namespace foresail
