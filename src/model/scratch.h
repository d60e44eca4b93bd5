// Matrices inside an Arena.
#pragma once

#include <cstring>
#include <span>

#include "kernels/kernel_set.h"
#include "tensor/arena.h"

namespace foresail {

inline MatrixView scratch_matrix(Arena& arena, DType dtype, int64_t rows, int64_t cols) {
  std::byte* data = arena.allocate(static_cast<size_t>(rows) * cols * size_bytes(dtype));
  return {data, dtype, rows, cols, cols};
}

// Rows [first, first + count) of a matrix.
inline MatrixView row_range(const MatrixView& matrix, int64_t first, int64_t count) {
  std::byte* data =
      static_cast<std::byte*>(matrix.data) + first * matrix.stride * size_bytes(matrix.dtype);
  return {data, matrix.dtype, count, matrix.cols, matrix.stride};
}

// Columns [first, first + count) of a matrix.
inline MatrixView column_range(const MatrixView& matrix, int64_t first, int64_t count) {
  std::byte* data = static_cast<std::byte*>(matrix.data) + first * size_bytes(matrix.dtype);
  return {data, matrix.dtype, matrix.rows, count, matrix.stride};
}

// Rows `rows` of `source` into `out`, which has the same width and dtype.
inline void gather_rows(const MatrixView& source, std::span<const int32_t> rows,
                        const MatrixView& out) {
  const size_t row_bytes = source.cols * size_bytes(source.dtype);
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(row_range(out, static_cast<int64_t>(i), 1).data, row_range(source, rows[i], 1).data,
                row_bytes);
}

}  // namespace foresail
