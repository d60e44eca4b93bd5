// V: sixteen f32 lanes as four quarters in the compiler's own vector type, which is SSE2 on plain
// x86-64.
#pragma once

#include <stdint.h>

namespace foresail {
namespace {

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));

struct V {
  F4 a, b, c, d;
};

// Register tile of the micro-kernel: 2 rows x 1 panel = 8 accumulators of the 16 xmm registers.
constexpr int kTileRows = 2;
constexpr int kTilePanels = 1;
constexpr int kPanelLanes = 16;  // outputs per weight panel

inline F4 load4(const float* p) {
  F4 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store4(float* p, F4 x) {
  __builtin_memcpy(p, &x, sizeof x);
}
inline F4 all4(float x) {
  return F4{x, x, x, x};
}
inline U4 bits_of(F4 x) {
  return reinterpret_cast<U4>(x);
}
inline F4 float_of(U4 x) {
  return reinterpret_cast<F4>(x);
}
inline F4 choose(I4 mask, F4 yes, F4 no) {
  const U4 m = reinterpret_cast<U4>(mask);
  return float_of((bits_of(yes) & m) | (bits_of(no) & ~m));
}

inline V set1(float x) {
  return {all4(x), all4(x), all4(x), all4(x)};
}
inline V zero() {
  return set1(0.0f);
}
inline V load(const float* p) {
  return {load4(p), load4(p + 4), load4(p + 8), load4(p + 12)};
}
inline void store(float* p, V x) {
  store4(p, x.a);
  store4(p + 4, x.b);
  store4(p + 8, x.c);
  store4(p + 12, x.d);
}
inline V load_n(const float* p, int64_t n) {
  float t[16] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i];
  return load(t);
}
inline void store_n(float* p, V x, int64_t n) {
  float t[16];
  store(t, x);
  for (int64_t i = 0; i < n; ++i) p[i] = t[i];
}
inline V add(V x, V y) {
  return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}
inline V sub(V x, V y) {
  return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d};
}
inline V mul(V x, V y) {
  return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}
inline V div(V x, V y) {
  return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d};
}
// Not fused: plain x86-64 has no such instruction. Results differ from other sets, not within one.
inline V fma(V x, V y, V z) {
  return {x.a * y.a + z.a, x.b * y.b + z.b, x.c * y.c + z.c, x.d * y.d + z.d};
}
// if_less where x < y, else other.
inline V select_less(V x, V y, V if_less, V other) {
  return {choose(x.a < y.a, if_less.a, other.a), choose(x.b < y.b, if_less.b, other.b),
          choose(x.c < y.c, if_less.c, other.c), choose(x.d < y.d, if_less.d, other.d)};
}
// Second operand when either is NaN.
inline V max(V x, V y) {
  return select_less(y, x, x, y);
}
inline V min(V x, V y) {
  return select_less(x, y, x, y);
}
// p * 2^n for integral n in [-252, 252]: in two factors, so that the ends come out right.
inline F4 scale4(F4 p, F4 n) {
  const I4 is_number = n == n;
  const I4 k = __builtin_convertvector(choose(is_number, n, all4(0.0f)), I4);
  const I4 half = k >> 1;
  const I4 rest = k - half;
  return p * reinterpret_cast<F4>((half + 127) << 23) * reinterpret_cast<F4>((rest + 127) << 23);
}
inline V scale_by_power(V p, V n) {
  return {scale4(p.a, n.a), scale4(p.b, n.b), scale4(p.c, n.c), scale4(p.d, n.d)};
}

inline F4 widen4(const uint16_t* p) {
  return float_of(U4{p[0], p[1], p[2], p[3]} << 16);
}
inline V load_bf16(const uint16_t* p) {
  return {widen4(p), widen4(p + 4), widen4(p + 8), widen4(p + 12)};
}
inline V load_bf16_n(const uint16_t* p, int64_t n) {
  uint16_t t[16] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i];
  return load_bf16(t);
}
// Round to nearest even, NaN made quiet; the result in the low halves.
inline U4 narrow(F4 x) {
  const U4 u = bits_of(x);
  const U4 rounded = u + 0x7FFF + ((u >> 16) & 1);
  const U4 is_number = reinterpret_cast<U4>(x == x);
  return ((rounded & is_number) | ((u | 0x400000) & ~is_number)) >> 16;
}
inline void store_bf16_n(uint16_t* p, V x, int64_t n) {
  const V bits = {float_of(narrow(x.a)), float_of(narrow(x.b)), float_of(narrow(x.c)),
                  float_of(narrow(x.d))};
  uint32_t t[16];
  __builtin_memcpy(t, &bits, sizeof t);
  for (int64_t i = 0; i < n; ++i) p[i] = static_cast<uint16_t>(t[i]);
}
inline void store_bf16(uint16_t* p, V x) {
  store_bf16_n(p, x, 16);
}

// The compiler may assume nothing about x afterwards.
inline void hide(V& x) {
  __asm__ volatile("" : "+x"(x.a), "+x"(x.b), "+x"(x.c), "+x"(x.d));
}

// Sixteen bf16 pairs as two f32 vectors: first and second element of each pair.
struct PairV {
  V even;
  V odd;
};
inline U4 load_words(const uint16_t* p) {
  U4 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline PairV load_pairs(const uint16_t* p) {
  const U4 a = load_words(p);
  const U4 b = load_words(p + 8);
  const U4 c = load_words(p + 16);
  const U4 d = load_words(p + 24);
  return {{float_of(a << 16), float_of(b << 16), float_of(c << 16), float_of(d << 16)},
          {float_of(a & 0xFFFF0000u), float_of(b & 0xFFFF0000u), float_of(c & 0xFFFF0000u),
           float_of(d & 0xFFFF0000u)}};
}

}  // namespace
}  // namespace foresail
