#include "kernels/cpu/cpu_matrix.h"

#include <algorithm>

#include "kernels/element.h"

namespace foresail {
namespace {

// bf16 of a source element; a bf16 source is copied bit for bit.
uint16_t bf16_bits(const HostMatrix& w, int64_t index) {
  if (w.dtype == DType::kBF16) return static_cast<const bf16*>(w.data)[index].bits;
  return to_bf16(load_element(w.data, w.dtype, index)).bits;
}

}  // namespace

CpuMatrix::CpuMatrix(const HostMatrix& w, DType dtype, ThreadPool& pool)
    : Matrix(w.n_out, w.n_in), is_bf16_(dtype == DType::kBF16) {
  panel_bytes_ = is_bf16_ ? (w.n_in + 1) / 2 * kLanes * 4 : w.n_in * kLanes * 4;
  buffer_ = Buffer(static_cast<size_t>(panel_count() * panel_bytes_));  // zeros
  pool.parallel_for(panel_count(), [&](int64_t panel, int) {
    std::byte* to = buffer_.data() + panel * panel_bytes_;
    const int64_t lanes = std::min<int64_t>(kLanes, w.n_out - panel * kLanes);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t o = panel * kLanes + lane;
      const int64_t begin = w.transposed ? o : o * w.stride;
      const int64_t step = w.transposed ? w.stride : 1;
      for (int64_t i = 0; i < w.n_in; ++i) {
        const int64_t from = begin + i * step;
        if (is_bf16_) {
          reinterpret_cast<uint16_t*>(to)[(i / 2 * kLanes + lane) * 2 + i % 2] =
              bf16_bits(w, from);
        } else {
          reinterpret_cast<float*>(to)[i * kLanes + lane] = load_element(w.data, w.dtype, from);
        }
      }
    }
  });
}

}  // namespace foresail
