// V: sixteen f32 lanes in two ymm. Included only by the AVX2 + FMA + F16C object.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace foresail {
namespace {

struct V {
  __m256 lo;
  __m256 hi;
};

// Register tile of the micro-kernel: 6 rows x 1 panel = 12 accumulators, 2 weights, 1 broadcast.
constexpr int kTileRows = 6;
constexpr int kTilePanels = 1;
constexpr int kPanelLanes = 16;  // outputs per weight panel

inline V zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline V set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline V load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, V x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline V load_n(const float* p, int64_t n) {
  alignas(32) float t[16] = {};
  __builtin_memcpy(t, p, static_cast<uint64_t>(n) * sizeof(float));
  return load(t);
}
inline void store_n(float* p, V x, int64_t n) {
  alignas(32) float t[16];
  store(t, x);
  __builtin_memcpy(p, t, static_cast<uint64_t>(n) * sizeof(float));
}
inline V add(V a, V b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline V sub(V a, V b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline V mul(V a, V b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline V div(V a, V b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline V fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// Second operand when either is NaN.
inline V max(V a, V b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline V min(V a, V b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
// if_less where a < b, else other.
inline V select_less(V a, V b, V if_less, V other) {
  return {_mm256_blendv_ps(other.lo, if_less.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(other.hi, if_less.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
// p * 2^n for integral n in [-252, 252]: in two factors, so that the ends come out right.
inline __m256 scale_half(__m256 p, __m256 n) {
  const __m256i i = _mm256_cvtps_epi32(n);
  const __m256i a = _mm256_srai_epi32(i, 1);
  const __m256i b = _mm256_sub_epi32(i, a);
  const __m256i bias = _mm256_set1_epi32(127);
  p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a, bias), 23)));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(b, bias), 23)));
}
inline V scale_by_power(V p, V n) {
  return {scale_half(p.lo, n.lo), scale_half(p.hi, n.hi)};
}

inline __m256 widen(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline V load_bf16(const uint16_t* p) {
  return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline V load_bf16_n(const uint16_t* p, int64_t n) {
  alignas(32) uint16_t t[16] = {};
  __builtin_memcpy(t, p, static_cast<uint64_t>(n) * sizeof(uint16_t));
  return load_bf16(t);
}
// Round to nearest even, NaN made quiet.
inline __m256i narrow(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_srli_epi32(_mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(r),
                                                                _mm256_castsi256_ps(quiet), nan)),
                           16);
}
inline void store_bf16(uint16_t* p, V x) {
  const __m256i packed = _mm256_packus_epi32(narrow(x.lo), narrow(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
inline void store_bf16_n(uint16_t* p, V x, int64_t n) {
  alignas(32) uint16_t t[16];
  store_bf16(t, x);
  __builtin_memcpy(p, t, static_cast<uint64_t>(n) * sizeof(uint16_t));
}

// The compiler may assume nothing about x afterwards.
inline void hide(V& x) {
  __asm__ volatile("" : "+x"(x.lo), "+x"(x.hi));
}

// Sixteen bf16 pairs as two f32 vectors: first and second element of each pair.
struct PairV {
  V even;
  V odd;
};
inline PairV load_pairs(const uint16_t* p) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(a, high)),
           _mm256_castsi256_ps(_mm256_and_si256(b, high))}};
}

}  // namespace
}  // namespace foresail
