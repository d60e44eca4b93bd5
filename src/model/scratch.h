// Matrices inside an Arena, and between the host and the memory of a kernel set.
#pragma once

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

// A matrix of the host in the arena's memory: the matrix itself where that is the host's. Its rows
// follow each other without gaps.
inline MatrixView placed(Memory& memory, Arena& arena, const MatrixView& host) {
  if (memory.is_host()) return host;
  const MatrixView copy = scratch_matrix(arena, host.dtype, host.rows, host.cols);
  memory.upload(copy.data, host.data,
                static_cast<size_t>(host.rows * host.cols) * size_bytes(host.dtype));
  return copy;
}

// Makes the buffer at least so large, and larger where more may follow; what it held may be lost.
inline void grow(Buffer& buffer, size_t size_bytes, Memory& memory) {
  if (buffer.size_bytes() < size_bytes) buffer = Buffer(size_bytes + size_bytes / 4, memory);
}

// The same where never more is asked for, to the byte: what a memory plan counts.
inline void allocate_once(Buffer& buffer, size_t size_bytes, Memory& memory) {
  if (buffer.size_bytes() < size_bytes) buffer = Buffer(size_bytes, memory);
}

// The matrix where the host can read and change it: itself, or a copy in `staging`, complete when
// this returns. Its rows follow each other without gaps.
inline MatrixView on_host(Memory& memory, const MatrixView& matrix, Buffer& staging) {
  if (memory.is_host() || matrix.rows == 0 || matrix.cols == 0) return matrix;
  const size_t bytes =
      static_cast<size_t>(matrix.rows * matrix.cols) * foresail::size_bytes(matrix.dtype);
  grow(staging, bytes, memory.staging());
  memory.download(staging.data(), matrix.data, bytes);
  return {staging.data(), matrix.dtype, matrix.rows, matrix.cols, matrix.cols};
}

}  // namespace foresail
