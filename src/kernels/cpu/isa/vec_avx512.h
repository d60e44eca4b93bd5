// V: sixteen f32 lanes in one zmm. Included only by AVX-512 objects.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace foresail {
namespace {

using V = __m512;

// Register tile of the micro-kernel: 8 rows x 3 panels of attention values = 24 accumulators, 3
// weights, 1 broadcast; in products 8 rows x both halves of a panel.
constexpr int kTileRows = 8;
constexpr int kTilePanels = 3;
constexpr int kPanelLanes = 32;  // outputs per weight panel

inline __mmask16 first(int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
inline V zero() {
  return _mm512_setzero_ps();
}
inline V set1(float x) {
  return _mm512_set1_ps(x);
}
inline V load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, V x) {
  _mm512_storeu_ps(p, x);
}
inline V load_n(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first(n), p);
}
inline void store_n(float* p, V x, int64_t n) {
  _mm512_mask_storeu_ps(p, first(n), x);
}
inline V add(V a, V b) {
  return _mm512_add_ps(a, b);
}
inline V sub(V a, V b) {
  return _mm512_sub_ps(a, b);
}
inline V mul(V a, V b) {
  return _mm512_mul_ps(a, b);
}
inline V div(V a, V b) {
  return _mm512_div_ps(a, b);
}
inline V fma(V a, V b, V c) {
  return _mm512_fmadd_ps(a, b, c);
}
// Second operand when either is NaN.
inline V max(V a, V b) {
  return _mm512_max_ps(a, b);
}
inline V min(V a, V b) {
  return _mm512_min_ps(a, b);
}
// if_less where a < b, else other.
inline V select_less(V a, V b, V if_less, V other) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), other, if_less);
}
// p * 2^n for integral n.
inline V scale_by_power(V p, V n) {
  return _mm512_scalef_ps(p, n);
}

inline V widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline V load_bf16(const uint16_t* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V load_bf16_n(const uint16_t* p, int64_t n) {
  return widen(_mm256_maskz_loadu_epi16(first(n), p));
}
// Round to nearest even, NaN made quiet: by integers, since vcvtneps2bf16 flushes denormals.
inline __m256i narrow(V x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u,
                           _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
inline void store_bf16(uint16_t* p, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x));
}
inline void store_bf16_n(uint16_t* p, V x, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow(x));
}

// The compiler may assume nothing about x afterwards.
inline void hide(V& x) {
  __asm__ volatile("" : "+v"(x));
}

// Sixteen bf16 pairs as two f32 vectors: first and second element of each pair.
struct PairV {
  V even;
  V odd;
};
inline PairV load_pairs(const uint16_t* p) {
  const __m512i u = _mm512_loadu_si512(p);
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(u, 16)),
      _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))};
}

}  // namespace
}  // namespace foresail
