// Start-up errors: one exception type, one line that says what to change, one exit status.
// Bad requests are values instead (result.h); broken invariants abort (check.h).
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace foresail {

// The value is the process exit status.
enum class ErrorCode {
  kUsage = 2,   // flags, prompts, arguments
  kModel = 3,   // checkpoint, config, tokenizer, template files
  kDevice = 4,  // device missing, out of memory
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }
  int exit_status() const { return static_cast<int>(code_); }

 private:
  ErrorCode code_;
};

template <typename... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void throw_model_error(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kModel, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace foresail
