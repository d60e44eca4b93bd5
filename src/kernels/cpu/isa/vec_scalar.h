// V: sixteen f32 lanes as an array; plain x86-64, the compiler makes SSE2 of it.
#pragma once

#include <stdint.h>

namespace foresail {
namespace {

struct V {
  float x[16];
};

// Register tile of the micro-kernel: 2 rows x 1 panel = 8 xmm accumulators, 4 weights.
constexpr int kTileRows = 2;
constexpr int kTilePanels = 1;

inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

#define FORESAIL_LANES(expression)               \
  V r;                                           \
  for (int i = 0; i < 16; ++i) r.x[i] = (expression); \
  return r

inline V set1(float a) { FORESAIL_LANES(a); }
inline V zero() { return set1(0.0f); }
inline V load(const float* p) { FORESAIL_LANES(p[i]); }
inline void store(float* p, V a) {
  for (int i = 0; i < 16; ++i) p[i] = a.x[i];
}
inline V load_n(const float* p, int64_t n) { FORESAIL_LANES(i < n ? p[i] : 0.0f); }
inline void store_n(float* p, V a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = a.x[i];
}
inline V add(V a, V b) { FORESAIL_LANES(a.x[i] + b.x[i]); }
inline V sub(V a, V b) { FORESAIL_LANES(a.x[i] - b.x[i]); }
inline V mul(V a, V b) { FORESAIL_LANES(a.x[i] * b.x[i]); }
inline V div(V a, V b) { FORESAIL_LANES(a.x[i] / b.x[i]); }
// Not fused: plain x86-64 has no such instruction. Results differ from other sets, not within one.
inline V fma(V a, V b, V c) { FORESAIL_LANES(a.x[i] * b.x[i] + c.x[i]); }
// Second operand when either is NaN.
inline V max(V a, V b) { FORESAIL_LANES(a.x[i] > b.x[i] ? a.x[i] : b.x[i]); }
inline V min(V a, V b) { FORESAIL_LANES(a.x[i] < b.x[i] ? a.x[i] : b.x[i]); }
// if_less where a < b, else other.
inline V select_less(V a, V b, V if_less, V other) {
  FORESAIL_LANES(a.x[i] < b.x[i] ? if_less.x[i] : other.x[i]);
}
// p * 2^n for integral n in [-252, 252]: in two factors, so that the ends come out right.
inline float scale_lane(float p, float n) {
  const int k = n == n ? static_cast<int>(n) : 0;
  const int a = k >> 1;
  const int b = k - a;
  return p * float_of(static_cast<uint32_t>(a + 127) << 23) *
         float_of(static_cast<uint32_t>(b + 127) << 23);
}
inline V scale_by_power(V p, V n) { FORESAIL_LANES(scale_lane(p.x[i], n.x[i])); }

inline float widen(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }
inline V load_bf16(const uint16_t* p) { FORESAIL_LANES(widen(p[i])); }
inline V load_bf16_n(const uint16_t* p, int64_t n) { FORESAIL_LANES(i < n ? widen(p[i]) : 0.0f); }
// Round to nearest even, NaN made quiet.
inline uint16_t narrow(float x) {
  const uint32_t u = bits_of(x);
  if (x != x) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}
inline void store_bf16_n(uint16_t* p, V a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = narrow(a.x[i]);
}
inline void store_bf16(uint16_t* p, V a) { store_bf16_n(p, a, 16); }

// The compiler may assume nothing about x afterwards.
inline void hide(V& x) { __asm__ volatile("" : "+m"(x)); }

// Sixteen bf16 pairs as two f32 vectors: first and second element of each pair.
struct PairV {
  V even;
  V odd;
};
inline V load_every_other(const uint16_t* p) { FORESAIL_LANES(widen(p[2 * i])); }
inline PairV load_pairs(const uint16_t* p) { return {load_every_other(p), load_every_other(p + 1)}; }

#undef FORESAIL_LANES

}  // namespace
}  // namespace foresail
