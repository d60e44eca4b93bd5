// What a flag's value may be. The message says what to choose; the help shows the same words.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace foresail {

// The whole of `text` as a finite decimal number, or empty. The one reading of numbers: the
// parser's own takes "" for 0, "010" for 8, "true" for 1 and "nan" for a number.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>)
    if (!std::isfinite(value)) return std::nullopt;
  return value;
}

// Both ends included; the largest number of the type means that there is no upper end.
template <typename Number>
CLI::Validator number_in(Number low, Number high) {
  const std::string kind = std::is_integral_v<Number> ? "a whole number" : "a number";
  const std::string range = high == std::numeric_limits<Number>::max()
                                ? fmt::format("{} or more", low)
                                : fmt::format("{} to {}", low, high);
  return CLI::Validator(
      [=](std::string& text) {
        const std::optional<Number> value = parse_number<Number>(text);
        if (value && *value >= low && *value <= high) return std::string();
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

// For every flag of every command, called once after they have been added: no value is empty, every
// number is one, and a flag without a value takes none. Ranges are the flags' own.
void check_all_values(CLI::App& app);

}  // namespace foresail
