// Functions over V that every instruction set shares in source, never in object code.
#pragma once

namespace foresail {
namespace {

// e^x to about 1 ulp: x = n ln2 + f with |f| <= ln2/2, a degree-6 polynomial for e^f, then 2^n.
// Below -104 the result is exactly 0 (so e^-inf is), above 89 infinity; NaN stays.
inline V exp(V x) {
  x = max(set1(-104.0f), x);  // operand order: a NaN in x survives
  x = min(set1(89.0f), x);
  const V magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V n = sub(add(mul(x, set1(1.44269504f)), magic), magic);
  // ln2 in two parts, the first with 9 trailing zero bits: n * part is exact.
  V f = sub(x, mul(n, set1(0.693359375f)));
  f = sub(f, mul(n, set1(-2.12194440e-4f)));
  // Cephes expf coefficients: relative error below 2^-25 on the interval.
  V p = set1(1.9875691500e-4f);
  p = fma(p, f, set1(1.3981999507e-3f));
  p = fma(p, f, set1(8.3334519073e-3f));
  p = fma(p, f, set1(4.1665795894e-2f));
  p = fma(p, f, set1(1.6666665459e-1f));
  p = fma(p, f, set1(5.0000001201e-1f));
  p = add(fma(p, mul(f, f), f), set1(1.0f));
  return scale_by_power(p, n);
}

inline V sigmoid(V x) {
  return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x))));
}

// Sum of the lanes in one fixed order.
inline float sum_lanes(V x) {
  float t[kLanes];
  store(t, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) t[i] += t[i + width];
  return t[0];
}

// n <= 16 numbers from element `i` of an f32 or bf16 row; the other lanes are zero.
inline V load_any(const void* p, bool is_bf16, int64_t i, int64_t n) {
  if (is_bf16) {
    const uint16_t* q = static_cast<const uint16_t*>(p) + i;
    return n == kLanes ? load_bf16(q) : load_bf16_n(q, n);
  }
  const float* q = static_cast<const float*>(p) + i;
  return n == kLanes ? load(q) : load_n(q, n);
}

inline void store_any(void* p, bool is_bf16, int64_t i, V x, int64_t n) {
  if (is_bf16) {
    uint16_t* q = static_cast<uint16_t*>(p) + i;
    n == kLanes ? store_bf16(q, x) : store_bf16_n(q, x, n);
  } else {
    float* q = static_cast<float*>(p) + i;
    n == kLanes ? store(q, x) : store_n(q, x, n);
  }
}

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

}  // namespace
}  // namespace foresail
