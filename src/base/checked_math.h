// Overflow-checked size arithmetic for numbers that come from files.
#pragma once

#include <cstdint>
#include <optional>

namespace foresail {

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Sums that only have to say "too much": UINT64_MAX instead of an overflow.
inline uint64_t saturating_mul(uint64_t a, uint64_t b) {
  return checked_mul(a, b).value_or(UINT64_MAX);
}

inline uint64_t saturating_add(uint64_t a, uint64_t b) {
  return checked_add(a, b).value_or(UINT64_MAX);
}

template <typename T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <typename T>
constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

}  // namespace foresail
