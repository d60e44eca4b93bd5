// Values for input that may be bad through no fault of the process: a request, a prompt, a field.
#pragma once

#include <string>
#include <tl/expected.hpp>

namespace foresail {

struct InputError {
  std::string message;  // one line, says what to change
  std::string param;    // the field at fault, empty when none
};

template <typename T>
using Result = tl::expected<T, InputError>;

inline tl::unexpected<InputError> input_error(std::string message, std::string param = {}) {
  return tl::unexpected<InputError>(InputError{std::move(message), std::move(param)});
}

}  // namespace foresail
