// Rows of activations -> the order the GEMM tiles read: tiles of up to kTileRows rows,
// [steps][rows].
#pragma once

namespace foresail {
namespace {

// Rows are cut into equal tiles of at most kTileRows.
struct RowTiles {
  int64_t rows;
  int64_t count;
  explicit RowTiles(int64_t row_count)
      : rows(row_count), count((row_count + kTileRows - 1) / kTileRows) {}
  int64_t begin(int64_t tile) const { return rows * tile / count; }
};

inline int64_t source_row(const PackRowsArgs& args, int64_t row) {
  return (args.rows.index != nullptr ? args.rows.index[row] : row) * args.rows.stride;
}

#if defined(__AVX512F__)
// Eight rows of sixteen 32-bit inputs -> sixteen steps of eight.
inline void store_transposed(const __m512i (&row)[8], void* out) {
  __m512i pair[8];
  for (int i = 0; i < 4; ++i) {
    pair[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
    pair[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
  }
  // quad[half][j]: rows 4 half .. 4 half + 3 of columns j, 4 + j, 8 + j, 12 + j, one per 128 bits.
  __m512i quad[2][4];
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 2; ++j) {
      quad[half][2 * j] = _mm512_unpacklo_epi64(pair[4 * half + j], pair[4 * half + 2 + j]);
      quad[half][2 * j + 1] = _mm512_unpackhi_epi64(pair[4 * half + j], pair[4 * half + 2 + j]);
    }
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  __m512i step[2][4];  // [columns j and 4 + j | 8 + j and 12 + j][j], eight rows each
  for (int j = 0; j < 4; ++j) {
    step[0][j] = _mm512_permutex2var_epi64(quad[0][j], low, quad[1][j]);
    step[1][j] = _mm512_permutex2var_epi64(quad[0][j], high, quad[1][j]);
  }
  char* to = static_cast<char*>(out);
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; j += 2) {
      _mm512_storeu_si512(to + half * 256 + j * 32,
                          _mm512_shuffle_i64x2(step[half][j], step[half][j + 1], 0x44));
      _mm512_storeu_si512(to + half * 256 + 128 + j * 32,
                          _mm512_shuffle_i64x2(step[half][j], step[half][j + 1], 0xEE));
    }
}
#endif

// `steps` >= cols: the inputs behind the last are zeros.
void pack_rows_f32_padded(const PackRowsArgs& args, int64_t steps) {
  const RowTiles tiles(args.row_count);
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t begin = tiles.begin(t);
    const int64_t m = tiles.begin(t + 1) - begin;
    float* out = static_cast<float*>(args.out) + begin * steps;
    int64_t done = 0;
#if defined(__AVX512F__)
    for (; m == 8 && done + kLanes <= args.cols; done += kLanes) {
      __m512i row[8];
      for (int r = 0; r < 8; ++r)
        row[r] = _mm512_castps_si512(load_any(args.rows.data, args.rows.is_bf16,
                                              source_row(args, begin + r) + done, kLanes));
      store_transposed(row, out + done * 8);
    }
#endif
    for (int64_t r = 0; r < m; ++r) {
      const int64_t at = source_row(args, begin + r);
      for (int64_t i = done; i < steps; i += kLanes) {
        float values[kLanes];
        const int64_t n = smaller(args.cols - i, kLanes);
        store(values, load_any(args.rows.data, args.rows.is_bf16, at + i, n));
        const int64_t wanted = smaller(steps - i, kLanes);
        for (int64_t j = 0; j < wanted; ++j) out[(i + j) * m + r] = values[j];
      }
    }
  }
}

void pack_rows_f32(const PackRowsArgs& args) {
  pack_rows_f32_padded(args, args.cols);
}

void pack_rows_widened(const PackRowsArgs& args) {
  pack_rows_f32_padded(args, (args.cols + 1) & ~int64_t{1});
}

#if defined(__AVX512BF16__)
// 32 numbers as bf16.
inline __m512i load_32_bf16(const RowsIn& rows, int64_t at) {
  if (rows.is_bf16) return _mm512_loadu_si512(static_cast<const uint16_t*>(rows.data) + at);
  const float* p = static_cast<const float*>(rows.data) + at;
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(load(p + kLanes), load(p)));
}

void pack_rows_pairs(const PackRowsArgs& args) {
  const RowTiles tiles(args.row_count);
  const int64_t steps = (args.cols + 1) / 2;
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t begin = tiles.begin(t);
    const int64_t m = tiles.begin(t + 1) - begin;
    uint32_t* out = static_cast<uint32_t*>(args.out) + begin * steps;
    int64_t done = 0;
    for (; m == 8 && done + 2 * kLanes <= args.cols; done += 2 * kLanes) {
      __m512i row[8];
      for (int r = 0; r < 8; ++r)
        row[r] = load_32_bf16(args.rows, source_row(args, begin + r) + done);
      store_transposed(row, out + done / 2 * 8);
    }
    for (int64_t r = 0; r < m; ++r) {
      const int64_t at = source_row(args, begin + r);
      for (int64_t i = done; i < args.cols; i += kLanes) {
        uint16_t values[kLanes];
        const int64_t n = smaller(args.cols - i, kLanes);
        store_bf16(values, load_any(args.rows.data, args.rows.is_bf16, at + i, n));
        for (int64_t j = 0; j < n; j += 2)
          out[(i + j) / 2 * m + r] = values[j] | static_cast<uint32_t>(values[j + 1]) << 16;
      }
    }
  }
}
#endif

}  // namespace
}  // namespace foresail
