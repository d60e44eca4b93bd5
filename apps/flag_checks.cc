#include "apps/flag_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace foresail {

template <typename Number>
FlagCheck number_in(Number low, Number high) {
  const std::string kind = std::is_integral_v<Number> ? "a whole number" : "a number";
  const std::string range = high == std::numeric_limits<Number>::max()
                                ? fmt::format("{} or more", low)
                                : fmt::format("{} to {}", low, high);
  const auto complaint = [=](const std::string& text) {
    const std::optional<Number> value = parse_number<Number>(text);
    if (value && *value >= low && *value <= high) return std::string();
    return fmt::format("choose {}, {}, instead of \"{}\"", kind, range, text);
  };
  return {complaint, range};
}

FlagCheck one_of(const std::vector<std::string>& names) {
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  const auto complaint = [=](const std::string& text) {
    if (std::find(names.begin(), names.end(), text) != names.end()) return std::string();
    return fmt::format("choose one of {} instead of \"{}\"", list, text);
  };
  return {complaint, list};
}

template FlagCheck number_in(int32_t low, int32_t high);
template FlagCheck number_in(int64_t low, int64_t high);
template FlagCheck number_in(float low, float high);
template FlagCheck number_in(double low, double high);

}  // namespace foresail
