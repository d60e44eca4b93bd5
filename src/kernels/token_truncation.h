// Which tokens a draw may take: top-k, then top-p, then min-p. Each keeps the head of the tokens
// ranked by logit, then by id. Shared by the host's sampler and the devices' kernels: masses are
// integers, so a sum does not depend on its order.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/token_choice.h"

namespace foresail {

// Greater for the better logit; 0: it is never drawn (minus infinity, not a number).
FORESAIL_ANY_DEVICE inline uint32_t rank_key(float logit) {
  if (!(logit > -std::numeric_limits<float>::infinity())) return 0;
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // one zero
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
FORESAIL_ANY_DEVICE inline float logit_of_key(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

// The tokens that stay: with a greater key, or the same and no greater id. Key 0: all.
struct RankCut {
  uint32_t largest;  // key of the best token
  uint32_t key;
  int32_t id;
};
FORESAIL_ANY_DEVICE inline bool stays(const RankCut& cut, uint32_t key, int64_t id) {
  return key > cut.key || (key == cut.key && id <= cut.id);
}

// e^x for -700 < x <= 0, within one unit in the last place, from basic operations only (FreeBSD's
// e_exp.c, Sun Microsystems 1993).
FORESAIL_ANY_DEVICE inline double plain_exp_near(double x) {
  const auto k = static_cast<int32_t>(x * 1.44269504088896338700e+00 - 0.5);
  const double high = x - k * 6.93147180369123816490e-01;
  const double low = k * 1.90821492927058770002e-10;
  const double r = high - low;
  const double square = r * r;
  const double c =
      r - square * (1.66666666666666019037e-01 +
                    square * (-2.77777777770155933842e-03 +
                              square * (6.61375632143793436117e-05 +
                                        square * (-1.65339022054652515390e-06 +
                                                  square * 4.13813679705723846039e-08))));
  const double y = 1.0 + (r * c / (2.0 - c) - low + high);
  return y * std::bit_cast<double>(static_cast<uint64_t>(0x3FF + k) << 52);
}
// As that; 0 below -700.
FORESAIL_ANY_DEVICE inline double plain_exp(double x) {
  return x > -700.0 ? plain_exp_near(x) : 0.0;
}

// Against the best token's, which is 1.
FORESAIL_ANY_DEVICE inline double token_weight(float logit, float largest,
                                               double inverse_temperature) {
  if (logit >= largest) return 1.0;  // infinite ones too
  return plain_exp((static_cast<double>(logit) - static_cast<double>(largest)) *
                   inverse_temperature);
}
// Up to 2^42, so that 2^20 tokens can be added.
FORESAIL_ANY_DEVICE inline uint64_t token_mass(double weight) {
  return static_cast<uint64_t>(weight * 0x1p42);
}
// Logits so far below the best, over the temperature, have no mass left: 2^42 e^-30 < 1.
constexpr double kMasslessDistance = 30.0;
// A token stays while those before it hold less than this. The first stays whatever top_p is.
FORESAIL_ANY_DEVICE inline uint64_t mass_needed(float top_p, uint64_t total) {
  const double exact = static_cast<double>(top_p) * static_cast<double>(total);
  const auto needed = static_cast<uint64_t>(exact);
  return needed + (static_cast<double>(needed) < exact ? 1 : 0);
}

// What any of several draws asks for.
struct Truncation {
  bool top_k = false, top_p = false, min_p = false;
  bool any() const { return top_k || top_p || min_p; }
  bool operator==(const Truncation&) const = default;
};
inline Truncation truncation_of(std::span<const TokenDraw> draws) {
  Truncation result;
  for (const TokenDraw& draw : draws) {
    if (draw.inverse_temperature == 0.0) continue;
    result.top_k |= draw.top_k > 0;
    result.top_p |= draw.top_p < 1.0f;
    result.min_p |= draw.min_p > 0.0f;
  }
  return result;
}

}  // namespace foresail
