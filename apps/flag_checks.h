// What a flag's value may be. The message says what to choose; the help shows the same words.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "apps/command_line.h"

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

// Both ends included; the largest number of the type means that there is no upper end. The types
// are listed at the end of flag_checks.cc.
template <typename Number>
FlagCheck number_in(Number low, Number high);

FlagCheck one_of(const std::vector<std::string>& names);

}  // namespace foresail
