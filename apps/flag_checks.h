// What a flag's value may be. The message says what to choose; the help shows the same words.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace foresail {

// Both ends included; the largest number of the type means that there is no upper end.
template <typename Number>
CLI::Validator number_in(Number low, Number high) {
  const std::string kind = std::is_integral_v<Number> ? "a whole number" : "a number";
  const std::string range = high == std::numeric_limits<Number>::max()
                                ? fmt::format("{} or more", low)
                                : fmt::format("{} to {}", low, high);
  return CLI::Validator(
      [=](std::string& text) {
        Number value{};
        // Written so that NaN is outside.
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high)
          return std::string();
        return fmt::format("choose {}, {}, instead of \"{}\"", kind, range, text);
      },
      range);
}

inline CLI::Validator one_of(const std::vector<std::string>& names) {
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  return CLI::Validator(
      [=](std::string& text) {
        for (const std::string& name : names)
          if (text == name) return std::string();
        return fmt::format("choose one of {} instead of \"{}\"", list, text);
      },
      list);
}

}  // namespace foresail
