// Brings queries, keys and values into the order the products of attention.h read them in.
#pragma once

namespace foresail {
namespace {

// Numbers -> products' type; `out` gets n numbers.
template <typename Kind>
void convert_keys(const float* from, void* out, int64_t n) {
  convert(from, false, out, Kind::kNumbersPerStep == 2, 1.0f, n);
}

template <typename Kind>
void pack_queries(const QueryLane* lanes, int64_t lane_count, int64_t key_dim, void* out) {
  using Input = typename Kind::Input;
  const int64_t steps = (key_dim + Kind::kNumbersPerStep - 1) / Kind::kNumbersPerStep;
  for (int64_t lane = 0; lane < padded(lane_count, kLanes); ++lane) {
    Input* to = static_cast<Input*>(out) + lane / kLanes * steps * kLanes + lane % kLanes;
    const float* query = lane < lane_count ? lanes[lane].query : nullptr;
    for (int64_t i = 0; i < key_dim; i += kLanes) {
      const int64_t n = smaller(key_dim - i, kLanes);
      const V x = query != nullptr ? load_any(query, false, i, n) : zero();
      if constexpr (Kind::kNumbersPerStep == 2) {
        uint16_t values[kLanes];
        store_bf16(values, x);
        for (int64_t j = 0; j < n; j += 2)
          to[(i + j) / 2 * kLanes] = values[j] | static_cast<uint32_t>(values[j + 1]) << 16;
      } else {
        float values[kLanes];
        store(values, x);
        for (int64_t j = 0; j < n; ++j) to[(i + j) * kLanes] = values[j];
      }
    }
  }
}

#if defined(__AVX512BF16__)
// Two f32 vectors -> pairs (a, b) in bf16, lane by lane. Denormals become zero, as in the product.
inline __m512i pairs_of(V a, V b) {
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));  // [a x16 | b x16]
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}
#endif

// [panels][kKeyBlock / numbers per step][16], zeros behind the last key.
template <typename Kind>
void pack_values(const void* const* rows, bool rows_are_bf16, int64_t key_count, int64_t value_dim,
                 void* out) {
  constexpr int64_t kPanelBytes = kKeyBlock / Kind::kNumbersPerStep * kStepBytes;
  const int64_t panels = padded(value_dim, kLanes) / kLanes;
  char* to = static_cast<char*>(out);
#if defined(__AVX512BF16__)
  if constexpr (Kind::kNumbersPerStep == 2) {
    // Words 0 of both rows, words 1 of both, ...: of the low and of the high sixteen.
    alignas(64) uint16_t index[2][32];
    for (int i = 0; i < 32; ++i) {
      index[0][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
      index[1][i] = static_cast<uint16_t>(16 + i / 2 + i % 2 * 32);
    }
    const __m512i low = _mm512_load_si512(index[0]);
    const __m512i high = _mm512_load_si512(index[1]);
    for (int64_t k = 0; k < key_count; k += 2) {
      const void* a = rows[k];
      const void* b = k + 1 < key_count ? rows[k + 1] : nullptr;
      char* at = to + k / 2 * kStepBytes;
      int64_t p = 0;
      if (rows_are_bf16)
        for (; (p + 2) * kLanes <= value_dim; p += 2) {
          const __m512i x = _mm512_loadu_si512(static_cast<const uint16_t*>(a) + p * kLanes);
          const __m512i y = b != nullptr
                                ? _mm512_loadu_si512(static_cast<const uint16_t*>(b) + p * kLanes)
                                : _mm512_setzero_si512();
          _mm512_storeu_si512(at + p * kPanelBytes, _mm512_permutex2var_epi16(x, low, y));
          _mm512_storeu_si512(at + (p + 1) * kPanelBytes, _mm512_permutex2var_epi16(x, high, y));
        }
      for (; p < panels; ++p) {
        const int64_t n = smaller(value_dim - p * kLanes, kLanes);
        const V y = b != nullptr ? load_any(b, rows_are_bf16, p * kLanes, n) : zero();
        _mm512_storeu_si512(at + p * kPanelBytes,
                            pairs_of(load_any(a, rows_are_bf16, p * kLanes, n), y));
      }
    }
    return;
  }
#endif
  // Panels are 4 KiB apart: written key by key, all of them would fall into one set of the L1.
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t n = smaller(value_dim - p * kLanes, kLanes);
    for (int64_t k = 0; k < key_count; ++k)
      store(reinterpret_cast<float*>(to + p * kPanelBytes + k * kStepBytes),
            load_any(rows[k], rows_are_bf16, p * kLanes, n));
  }
}

}  // namespace
}  // namespace foresail
