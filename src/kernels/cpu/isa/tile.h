// The micro-kernel: MR rows times NP panels of sixteen outputs. Each (row, output) has one
// accumulator lane that takes the inputs strictly in order, so its bits do not depend on the tile
// shape; tiles may therefore differ between one row and many.
#pragma once

namespace foresail {
namespace {

// f32 inputs, f32 weights [steps][16].
struct F32Kind {
  using Input = float;
  static constexpr int kInputsPerStep = 1;
  template <int MR, int NP>
  static inline void step(const float* a, int64_t, const char* b, int64_t panel_bytes,
                          V (&acc)[MR][NP]) {
    V w[NP];
    for (int p = 0; p < NP; ++p) w[p] = load(reinterpret_cast<const float*>(b + p * panel_bytes));
    for (int r = 0; r < MR; ++r) {
      const V x = set1(a[r]);
      for (int p = 0; p < NP; ++p) acc[r][p] = fma(x, w[p], acc[r][p]);
    }
  }
};

// f32 inputs, bf16 weights [steps][16][2] widened on the way.
struct WidenKind {
  using Input = float;
  static constexpr int kInputsPerStep = 2;
  template <int MR, int NP>
  static inline void step(const float* a, int64_t a_step, const char* b, int64_t panel_bytes,
                          V (&acc)[MR][NP]) {
    for (int p = 0; p < NP; ++p) {
      const PairV w = load_pairs(reinterpret_cast<const uint16_t*>(b + p * panel_bytes));
      for (int r = 0; r < MR; ++r) {
        acc[r][p] = fma(set1(a[r]), w.even, acc[r][p]);
        acc[r][p] = fma(set1(a[a_step + r]), w.odd, acc[r][p]);
      }
    }
  }
};

#if defined(__AVX512BF16__)
// Pairs of bf16 on both sides. vdpbf16ps adds the odd product, then the even one, each rounded;
// denormals count as zero.
struct DotKind {
  using Input = uint32_t;
  static constexpr int kInputsPerStep = 1;
  template <int MR, int NP>
  static inline void step(const uint32_t* a, int64_t, const char* b, int64_t panel_bytes,
                          V (&acc)[MR][NP]) {
    __m512bh w[NP];
    for (int p = 0; p < NP; ++p) w[p] = reinterpret_cast<__m512bh>(_mm512_loadu_ps(b + p * panel_bytes));
    for (int r = 0; r < MR; ++r) {
      const __m512bh x =
          reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r])));
      for (int p = 0; p < NP; ++p) acc[r][p] = _mm512_dpbf16_ps(acc[r][p], x, w[p]);
    }
  }
};
#endif

constexpr int64_t kStepBytes = 64;  // of a panel: 16 outputs x (one f32 or two bf16)

// a: input of row r at step s is a[s * a_step + r].
template <typename Kind, int MR, int NP>
inline void run_steps(const typename Kind::Input* a, int64_t a_step, const char* b,
                      int64_t panel_bytes, int64_t steps, V (&acc)[MR][NP]) {
  for (int64_t s = 0; s < steps; ++s) {
    Kind::template step<MR, NP>(a, a_step, b, panel_bytes, acc);
    a += a_step * Kind::kInputsPerStep;
    b += kStepBytes;
  }
}

}  // namespace
}  // namespace foresail
