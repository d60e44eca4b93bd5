// Loops that do nothing but read, or nothing but multiply and add.
#pragma once

namespace foresail {
namespace {

float read_stream(const void* data, int64_t size_bytes) {
  const float* p = static_cast<const float*>(data);
  V sum[4] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0; i < size_bytes / 4; i += 64)
    for (int j = 0; j < 4; ++j) sum[j] = add(sum[j], load(p + i + j * kLanes));
  return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

#if defined(__AVX512BF16__)
// Sixteen independent chains cover the latency (6 cycles on Zen 4) of a unit that starts one
// vdpbf16ps a cycle; nothing is loaded.
int64_t peak_dot(int64_t steps) {
  constexpr int kChains = 16;
  V acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = set1(static_cast<float>(i));
  V zeros = zero();
  for (int64_t s = 0; s < steps; ++s) {
    hide(zeros);
    const __m512bh x = reinterpret_cast<__m512bh>(zeros);
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], x, x);
  }
  float sum = 0.0f;
  for (int i = 0; i < kChains; ++i) sum += sum_lanes(acc[i]);
  return sum < 0.0f ? 0 : steps * kChains * kLanes * 2 * 2;
}
#endif

int64_t peak_fma(int64_t steps) {
  // As many as fit in the registers: 12 zmm, 6 pairs of ymm, 3 sets of four xmm.
  constexpr int kTile = kTileRows * kTilePanels;
  constexpr int kChains = kTile < 3 ? 3 : kTile < 12 ? kTile : 12;
  V acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = set1(static_cast<float>(i));
  V x = zero();
  for (int64_t s = 0; s < steps; ++s) {
    hide(x);
    for (int i = 0; i < kChains; ++i) acc[i] = fma(acc[i], x, x);
  }
  float sum = 0.0f;
  for (int i = 0; i < kChains; ++i) sum += sum_lanes(acc[i]);
  return sum < 0.0f ? 0 : steps * kChains * kLanes * 2;
}

int64_t peak_loop([[maybe_unused]] bool bf16, int64_t steps) {
#if defined(__AVX512BF16__)
  if (bf16) return peak_dot(steps);
#endif
  return peak_fma(steps);
}

}  // namespace
}  // namespace foresail
