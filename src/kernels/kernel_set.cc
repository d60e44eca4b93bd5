#include "kernels/kernel_set.h"

#include <cstring>

namespace foresail {
namespace {

std::byte* row_of(const MatrixView& matrix, int64_t row) {
  return static_cast<std::byte*>(matrix.data) +
         row * matrix.stride * static_cast<int64_t>(size_bytes(matrix.dtype));
}

}  // namespace

void KernelSet::gather_rows(const MatrixView& in, std::span<const int32_t> rows,
                            const MatrixView& out) {
  const size_t row_bytes = static_cast<size_t>(in.cols) * size_bytes(in.dtype);
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(row_of(out, static_cast<int64_t>(i)), row_of(in, rows[i]), row_bytes);
}

void KernelSet::store_rows(const MatrixView& rows, std::span<const int32_t> slots,
                           const LatentCache& cache) {
  const int64_t width = cache.latent_dim + cache.rope_dim;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    const MatrixView from = {row_of(rows, static_cast<int64_t>(i)), rows.dtype, 1, width, width};
    std::byte* to = static_cast<std::byte*>(cache.data) +
                    slots[i] * width * static_cast<int64_t>(size_bytes(cache.dtype));
    convert(from, {to, cache.dtype, 1, width, width});
  }
}

}  // namespace foresail
