// Bit-exact conversions between float32 and the short formats. Round to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace foresail {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
// OCP 8-bit floating point, E4M3: no infinities, largest 448, one NaN a sign.
struct f8e4m3 {
  uint8_t bits;
};

inline float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

inline bf16 to_bf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return {static_cast<uint16_t>((u >> 16) | 0x40)};  // quiet NaN
  u += 0x7FFF + ((u >> 16) & 1);
  return {static_cast<uint16_t>(u >> 16)};
}

inline float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1F;
  const uint32_t mantissa = x.bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal, exact
  return sign ? -magnitude : magnitude;
}

inline float to_float(f8e4m3 x) {
  const uint32_t magnitude = x.bits & 0x7F;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80) << 24;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000);
  // The exponent's bias is 7 here and 127 there; the product is exact, subnormals included.
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

// Beyond the largest number it saturates.
inline f8e4m3 to_f8e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80);
  const uint32_t magnitude = u & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return {static_cast<uint8_t>(sign | 0x7F)};
  if (magnitude >= 0x43E00000) return {static_cast<uint8_t>(sign | 0x7E)};  // 448
  if (magnitude < 0x3C800000) {  // below 2^-6, the smallest normal number
    // Adding 2^14 leaves the multiples of 2^-9 in the last bits, rounded to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000))};
  }
  const uint32_t rounded = magnitude + 0x7FFFF + ((magnitude >> 20) & 1);
  return {static_cast<uint8_t>(sign | ((rounded >> 20) - (120 << 3)))};
}

}  // namespace foresail
