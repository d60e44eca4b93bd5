// The micro-kernel: MR rows times NP panels of sixteen outputs. Each (row, output) has one
// accumulator lane that takes the inputs strictly in order, so its bits do not depend on the tile
// shape; tiles may therefore differ between one row and many.
#pragma once

namespace foresail {
namespace {

// How far ahead of the weights in use those to come are fetched. The hardware starts anew with
// every 4 KiB page. One or two rows are so few instructions that the core itself reads some KiB
// further on; with more rows it sees less far, and the fetches make up for that, as long as rows
// and fetched lines share the L1. docs/measurements/2026-11-30-cpu-mla-mid.md has other distances.
constexpr int stream_ahead_bytes(int rows) {
  return rows <= 2 ? 4096 : rows <= 4 ? 5120 : 8192;
}

// f32 inputs, f32 weights [steps][16].
struct F32Kind {
  static constexpr bool kStreams = true;
  using Input = float;
  using Weight = V;
  using Broadcast = V;
  static constexpr int kInputsPerStep = 1;
  static constexpr int kNumbersPerStep = 1;
  static inline Weight load_weight(const char* b) {
    return load(reinterpret_cast<const float*>(b));
  }
  static inline Broadcast broadcast(const float* a) { return set1(*a); }
  static inline V multiply_add(Broadcast x, Weight w, V acc) { return fma(x, w, acc); }
  template <int MR, int NP>
  static inline void step(const float* a, int64_t, const char* b, int64_t panel_bytes,
                          V (&acc)[MR][NP]);
};

// f32 inputs, bf16 weights [steps][16][2] widened on the way.
struct WidenKind {
  static constexpr bool kStreams = true;
  using Input = float;
  static constexpr int kInputsPerStep = 2;
  template <int MR, int NP>
  static inline void step(const float* a, int64_t a_step, const char* b, int64_t panel_bytes,
                          V (&acc)[MR][NP]) {
    PairV w[NP];
    for (int p = 0; p < NP; ++p)
      w[p] = load_pairs(reinterpret_cast<const uint16_t*>(b + p * panel_bytes));
    // Row by row, so that no more than one row's inputs take registers.
    for (int r = 0; r < MR; ++r) {
      const V even = set1(a[r]);
      const V odd = set1(a[a_step + r]);
      // The pair is summed before it meets the accumulator: one addition is all that a step waits
      // for, and additions have units of their own beside those of multiplications.
      for (int p = 0; p < NP; ++p)
        acc[r][p] = add(acc[r][p], fma(odd, w[p].odd, mul(even, w[p].even)));
    }
  }
};

#if defined(__AVX512BF16__)
// Pairs of bf16 on both sides. vdpbf16ps adds the odd product, then the even one, each rounded;
// denormals count as zero.
struct DotKind {
  static constexpr bool kStreams = false;  // many rows: the weights are in L2
  using Input = uint32_t;
  using Weight = __m512bh;
  using Broadcast = __m512bh;
  static constexpr int kInputsPerStep = 1;
  static constexpr int kNumbersPerStep = 2;
  static inline Weight load_weight(const char* b) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_ps(b));
  }
  static inline Broadcast broadcast(const uint32_t* a) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*a)));
  }
  static inline V multiply_add(Broadcast x, Weight w, V acc) { return _mm512_dpbf16_ps(acc, x, w); }
  template <int MR, int NP>
  static inline void step(const uint32_t* a, int64_t, const char* b, int64_t panel_bytes,
                          V (&acc)[MR][NP]);
};
#endif

// One step; the input of row r is where input(r) points.
template <typename Kind, int MR, int NP, typename InputAt>
inline void plain_step(const InputAt& input, const char* b, int64_t panel_bytes, V (&acc)[MR][NP]) {
  typename Kind::Weight w[NP];
  for (int p = 0; p < NP; ++p) w[p] = Kind::load_weight(b + p * panel_bytes);
  for (int r = 0; r < MR; ++r) {
    const typename Kind::Broadcast x = Kind::broadcast(input(r));
    for (int p = 0; p < NP; ++p) acc[r][p] = Kind::multiply_add(x, w[p], acc[r][p]);
  }
}

template <int MR, int NP>
inline void F32Kind::step(const float* a, int64_t, const char* b, int64_t panel_bytes,
                          V (&acc)[MR][NP]) {
  plain_step<F32Kind>([a](int r) { return a + r; }, b, panel_bytes, acc);
}
#if defined(__AVX512BF16__)
template <int MR, int NP>
inline void DotKind::step(const uint32_t* a, int64_t, const char* b, int64_t panel_bytes,
                          V (&acc)[MR][NP]) {
  plain_step<DotKind>([a](int r) { return a + r; }, b, panel_bytes, acc);
}
#endif

constexpr int64_t kStepBytes = 64;  // of a panel: 16 outputs x (one f32 or two bf16)

// a: input of row r at step s is a[s * a_step + r]. b: steps are step_bytes apart, panels
// panel_bytes. kAheadBytes: what lies so far behind is prefetched; 0: nothing is.
template <typename Kind, int MR, int NP, int kAheadBytes = 0>
inline void run_steps(const typename Kind::Input* a, int64_t a_step, const char* b,
                      int64_t panel_bytes, int64_t step_bytes, int64_t steps, V (&acc)[MR][NP]) {
  for (int64_t s = 0; s < steps; ++s) {
    if constexpr (kAheadBytes != 0)
      for (int p = 0; p < NP; ++p) __builtin_prefetch(b + kAheadBytes + p * panel_bytes, 0, 3);
    Kind::template step<MR, NP>(a, a_step, b, panel_bytes, acc);
    a += a_step * Kind::kInputsPerStep;
    b += step_bytes;
  }
}

// As run_steps, but every row is a contiguous run of inputs of its own, and `ahead` are rows that
// will be wanted soon: one line of each is prefetched for every line used, since the hardware
// does not foresee so many short streams.
template <typename Kind, int MR, int NP>
inline void run_rows(const typename Kind::Input* const* rows, const void* const* ahead,
                     const char* b, int64_t panel_bytes, int64_t steps, V (&acc)[MR][NP]) {
  constexpr int64_t kLineSteps = 64 / sizeof(typename Kind::Input);
  const typename Kind::Input* row[MR];
  for (int r = 0; r < MR; ++r) row[r] = rows[r];
  for (int64_t from = 0; from < steps; from += kLineSteps) {
    for (int r = 0; r < MR; ++r)
      __builtin_prefetch(static_cast<const typename Kind::Input*>(ahead[r]) + from, 0, 2);
    const int64_t to = from + kLineSteps < steps ? from + kLineSteps : steps;
    for (int64_t s = from; s < to; ++s) {
      plain_step<Kind>([&](int r) { return row[r] + s; }, b, panel_bytes, acc);
      b += kStepBytes;
    }
  }
}

}  // namespace
}  // namespace foresail
