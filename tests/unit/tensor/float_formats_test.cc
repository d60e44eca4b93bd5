#include "tensor/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace foresail {
namespace {

// From the definition of the format: sign, 4 bits of exponent with bias 7, 3 bits of fraction.
double f8_by_definition(int code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(1.0 + fraction / 8.0, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

TEST(F8E4M3, EveryCodeDecodesToItsNumberAndBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = to_float(f8e4m3{static_cast<uint8_t>(code)});
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, f8_by_definition(code)) << code;
    }
    EXPECT_EQ(to_f8e4m3(value).bits, code) << code;
  }
}

TEST(F8E4M3, RoundsToNearestEvenAndSaturates) {
  std::mt19937_64 random(5);
  const auto nearest = [](double x) {
    int best = 0;
    for (int code = 0; code <= 0x7E; ++code) {
      const double distance = std::abs(f8_by_definition(code) - std::abs(x));
      const double best_distance = std::abs(f8_by_definition(best) - std::abs(x));
      if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
    }
    return best | (std::signbit(x) ? 0x80 : 0);
  };
  std::vector<float> values{0.0f,      -0.0f,      448.0f,  463.9f,
                            464.0f,    465.0f,     1e30f,   std::numeric_limits<float>::infinity(),
                            0x1p-10f,  0x1.8p-10f, 0x1p-9f, 0x1.8p-9f,
                            0x1.fp-7f, 0x1.ffp-7f, 1e-30f};
  for (int code = 0; code < 0x7E; ++code)  // the midpoints
    values.push_back(
        static_cast<float>(0.5 * (f8_by_definition(code) + f8_by_definition(code + 1))));
  for (int i = 0; i < 20000; ++i)
    values.push_back(std::ldexp(static_cast<float>(random() % 4096) / 4096.0f + 1.0f,
                                static_cast<int>(random() % 22) - 12));
  for (const float value : values) {
    EXPECT_EQ(to_f8e4m3(value).bits, nearest(value)) << value;
    EXPECT_EQ(to_f8e4m3(-value).bits, nearest(-value)) << -value;
  }
}

}  // namespace
}  // namespace foresail
