#include "kernels/cpu/cpu_matrix.h"

#include <algorithm>
#include <cstring>

#include "kernels/element.h"

namespace foresail {
namespace {

// The common case, a bf16 checkpoint for bf16 products: pairs are copied whole.
void copy_pairs(const bf16* from, int64_t n_in, int64_t lane, int64_t panel_lanes,
                std::byte* panel) {
  std::byte* to = panel + lane * 4;
  for (int64_t pair = 0; pair < n_in / 2; ++pair)
    std::memcpy(to + pair * panel_lanes * 4, from + 2 * pair, 4);
  if (n_in % 2 != 0) std::memcpy(to + n_in / 2 * panel_lanes * 4, from + n_in - 1, 2);
}

// bf16 of a source element; a bf16 source is copied bit for bit.
uint16_t bf16_bits(const HostMatrix& w, int64_t index) {
  if (w.dtype == DType::kBF16) return static_cast<const bf16*>(w.data)[index].bits;
  return to_bf16(load_element(w.data, w.dtype, index)).bits;
}

// Untouched pages of a slab cost nothing, so only the last huge page of one is ever waste.
constexpr int64_t kSlabBytes = 256 << 20;

}  // namespace

WeightArena::Piece WeightArena::take(int64_t size_bytes) {
  const int64_t rounded = padded(size_bytes, 64);
  if (slab_ == nullptr || used_bytes_ + rounded > static_cast<int64_t>(slab_->size_bytes())) {
    // A weight that would leave most of a slab unused gets one of its own.
    if (rounded > kSlabBytes / 2) {
      const auto own = std::make_shared<Buffer>(static_cast<size_t>(rounded));
      return {own, own->data()};
    }
    slab_ = std::make_shared<Buffer>(static_cast<size_t>(kSlabBytes));
    used_bytes_ = 0;
  }
  std::byte* data = slab_->data() + used_bytes_;
  used_bytes_ += rounded;
  return {slab_, data};
}

CpuMatrix::CpuMatrix(const HostMatrix& w, DType dtype, int panel_lanes, WeightArena& arena,
                     ThreadPool& pool)
    : Matrix(w.n_out, w.n_in), is_bf16_(dtype == DType::kBF16), panel_lanes_(panel_lanes) {
  panel_bytes_ = is_bf16_ ? (w.n_in + 1) / 2 * panel_lanes_ * 4 : w.n_in * panel_lanes_ * 4;
  memory_ = arena.take(panel_count() * panel_bytes_);
  pool.parallel_for(panel_count(), [&](int64_t panel, int) {
    std::byte* to = memory_.data + panel * panel_bytes_;
    const int64_t lanes = std::min<int64_t>(panel_lanes_, w.n_out - panel * panel_lanes_);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t o = panel * panel_lanes_ + lane;
      const int64_t begin = w.transposed ? o : o * w.stride;
      const int64_t step = w.transposed ? w.stride : 1;
      if (is_bf16_ && w.dtype == DType::kBF16 && step == 1) {
        copy_pairs(static_cast<const bf16*>(w.data) + begin, w.n_in, lane, panel_lanes_, to);
        continue;
      }
      for (int64_t i = 0; i < w.n_in; ++i) {
        const int64_t from = begin + i * step;
        if (is_bf16_) {
          reinterpret_cast<uint16_t*>(to)[(i / 2 * panel_lanes_ + lane) * 2 + i % 2] =
              bf16_bits(w, from);
        } else {
          reinterpret_cast<float*>(to)[i * panel_lanes_ + lane] =
              load_element(w.data, w.dtype, from);
        }
      }
    }
  });
}

}  // namespace foresail
