// Where the engine says what it does beside its answers. Without a callback it says nothing.
#pragma once

#include <functional>
#include <string>

namespace foresail {

enum class LogLevel { kInfo, kWarning, kError };

// One line, without a line break. Called from the thread that constructs the engine and from the
// engine's own: it returns quickly and does not throw.
using LogCallback = std::function<void(LogLevel level, const std::string& message)>;

}  // namespace foresail
