// Products of the CUDA set beside the oracle.
#pragma once

#include <fmt/format.h>

#include "gpu_fixture.h"
#include "kernel/random_inputs.h"

namespace foresail {

struct HeadShape {
  int heads, latent, rope, nope, value;
};

// k of so many experts for each row: the first has most rows, and one behind the last has none.
struct Chosen {
  Chosen(KernelSet& set, int rows, int count, int k) {
    for (int row = 0; row < rows; ++row) {
      std::vector<int> order = shuffled(count, static_cast<uint64_t>(row) + 3);
      if (row % 2 == 0) std::swap(*std::find(order.begin(), order.end(), 0), order[0]);
      for (int j = 0; j < k; ++j) {
        ids.push_back(order[static_cast<size_t>(j)]);
        weights.push_back(0.1f + 0.2f * static_cast<float>((row + j) % 5));
      }
    }
    const size_t bytes = ids.size() * 4;
    device_ids_ = Buffer(bytes, set.memory());
    device_weights_ = Buffer(bytes, set.memory());
    set.memory().upload(device_ids_.data(), ids.data(), bytes);
    set.memory().upload(device_weights_.data(), weights.data(), bytes);
  }
  const int32_t* device_ids() const { return device_ids_.as<int32_t>(); }
  const float* device_weights() const { return device_weights_.as<float>(); }
  std::vector<int32_t> ids;
  std::vector<float> weights;

 private:
  Buffer device_ids_, device_weights_;
};

// Some columns of a matrix.
inline MatrixView columns(const MatrixView& from, int64_t first, int64_t count) {
  const int64_t offset = first * static_cast<int64_t>(size_bytes(from.dtype));
  return MatrixView{static_cast<std::byte*>(from.data) + offset, from.dtype, from.rows, count,
                    from.stride};
}

class ProductTest : public GpuTest {
 protected:
  // odd_strides: also rows that no vector load can take.
  ProductTest(bool deterministic, bool odd_strides)
      : GpuTest(deterministic), odd_strides_(odd_strides) {}
  // f32 rows keep 16 bits of mantissa.
  static constexpr double kProductTolerance = 2e-5;

  void expect_linear(int64_t rows, int64_t n_in, int64_t n_out) {
    for (const DType act : {DType::kF32, DType::kBF16})
      for (const bool accumulate : {false, true}) {
        const Tensor x =
            Tensor(act, rows, n_in, odd_strides_ && n_in % 4 != 0 ? 3 : 4).randomize(1);
        const Tensor source = Tensor(DType::kBF16, n_out, n_in, 5).randomize(2);
        const Tensor bias = Tensor(DType::kF32, 1, n_out).randomize(3);
        const auto w = set().pack(source.as_weight());
        const auto w_ref = ref().pack(source.as_weight());
        Tensor got = Tensor(DType::kF32, rows, n_out, 1).randomize(4);
        Tensor want = got;
        const Copy out = copy(got), device_bias = copy(bias);
        set().linear(copy(x), *w, accumulate ? device_bias.f32() : nullptr, 0.7f, accumulate, out);
        ref().linear(x, *w_ref, accumulate ? static_cast<const float*>(bias.view().data) : nullptr,
                     0.7f, accumulate, want);
        expect_close(out.read(got), want, kProductTolerance,
                     fmt::format("{} x {} x {}", rows, n_in, n_out));
      }
  }
  void expect_head_projections(int rows, const HeadShape& shape) {
    const auto& [heads, latent, rope, nope, value] = shape;
    std::vector<MatrixPtr> uk_t, uv, ref_uk_t, ref_uv;
    for (int h = 0; h < heads; ++h) {
      const uint64_t seed = static_cast<uint64_t>(h) + 1;
      const Tensor k = Tensor(DType::kBF16, nope, latent).randomize(seed, 0.1f);
      const Tensor v = Tensor(DType::kBF16, value, latent).randomize(seed + 100, 0.1f);
      uk_t.push_back(set().pack(k.as_weight(true)));
      ref_uk_t.push_back(ref().pack(k.as_weight(true)));
      uv.push_back(set().pack(v.as_weight()));
      ref_uv.push_back(ref().pack(v.as_weight()));
    }
    const Tensor q = Tensor(DType::kF32, rows, heads * (nope + rope), 4).randomize(1);
    Tensor got(DType::kF32, rows, heads * (latent + rope), 2);
    Tensor want = got;
    const Copy absorbed = copy(got);
    set().absorb_query(copy(q), uk_t, nope, rope, absorbed);
    ref().absorb_query(q, ref_uk_t, nope, rope, want);
    expect_close(absorbed.read(got), want, kProductTolerance, "absorb");
    for (const DType act : {DType::kF32, DType::kBF16}) {
      const Tensor in = Tensor(act, rows, heads * latent, odd_strides_ ? 1 : 0).randomize(2);
      Tensor got_up(act, rows, heads * value, 2);
      Tensor want_up = got_up;
      const Copy up = copy(got_up);
      set().value_up(copy(in), uv, up);
      ref().value_up(in, ref_uv, want_up);
      expect_close(up.read(got_up), want_up, act == DType::kBF16 ? 8e-3 : kProductTolerance,
                   "value_up");
    }
  }

 private:
  bool odd_strides_;
};

}  // namespace foresail
