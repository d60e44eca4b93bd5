// Row operations of the CUDA set beside the oracle.
#include "gpu_fixture.h"

namespace foresail {
namespace {

class GpuRows : public GpuTest {};

double rounding(DType dtype) {
  if (dtype == DType::kF8E4M3) return 7e-2;  // one code apart where a value lies between two
  return dtype == DType::kBF16 ? 8e-3 : 3e-6;
}

TEST_F(GpuRows, NormConvertEmbedGather) {
  for (const int64_t cols : {1, 7, 64, 1000})
    for (const DType in : {DType::kF32, DType::kBF16})
      for (const DType out_dtype : {DType::kF32, DType::kBF16}) {
        const std::string what = "cols " + std::to_string(cols);
        const Tensor x = Tensor(in, 23, cols, 3).randomize(1, 3.0f);
        const Tensor weight = Tensor(DType::kF32, 1, cols).randomize(2, 0.2f, 1.0f);
        Tensor got(out_dtype, 23, cols, 1);
        Tensor want = got;
        const Copy device_x = copy(x), device_weight = copy(weight), out = copy(got);
        set().rms_norm(device_x, device_weight.f32(), 1e-6f, out);
        ref().rms_norm(x, static_cast<const float*>(weight.view().data), 1e-6f, want);
        expect_close(out.read(got), want, rounding(out_dtype), what + " norm");
        set().convert(device_x, out);
        ref().convert(x, want);
        out.read(got);
        for (int row = 0; row < 23; ++row) expect_same_row(got, row, want, row, what + " convert");
        std::vector<int32_t> ids;
        for (int i = 0; i < 23; ++i) ids.push_back((i * 7) % 23);
        begin({.token_ids = ids, .wanted_rows = ids});
        set().embed(ids, device_x, 12.0f, out);
        ref().embed(ids, x, 12.0f, want);
        out.read(got);
        for (int row = 0; row < 23; ++row) expect_same_row(got, row, want, row, what + " embed");
        if (in != out_dtype) continue;
        set().gather_rows(device_x, ids, out);
        out.read(got);
        for (int row = 0; row < 23; ++row) expect_same_row(got, row, x, ids[row], what + " gather");
      }
}

TEST_F(GpuRows, SiluMul) {
  for (const int64_t inner : {1, 17, 3000})
    for (const DType out_dtype : {DType::kF32, DType::kBF16}) {
      Tensor gate_up = Tensor(DType::kF32, 9, 2 * inner, 1).randomize(1, 4.0f);
      gate_up.set(0, 0, -1000.0f);  // exp overflows: silu is -0
      gate_up.set(1, 0, 1000.0f);
      Tensor got(out_dtype, 9, inner, 2);
      Tensor want = got;
      const Copy out = copy(got);
      set().silu_mul(copy(gate_up), out);
      ref().silu_mul(gate_up, want);
      expect_close(out.read(got), want, rounding(out_dtype), "silu");
    }
}

TEST_F(GpuRows, RotateAndStore) {
  std::vector<int32_t> positions, slots;
  std::vector<float> scales;
  for (int i = 0; i < 11; ++i) {
    positions.push_back((i * 13) % 50);
    slots.push_back(i == 4 ? -1 : (i * 7) % 32);
    scales.push_back(1.0f + 0.1f * static_cast<float>(i));
  }
  for (const RopeLayout layout : {RopeLayout::kAdjacentPairs, RopeLayout::kHalfSplit})
    for (const auto& [heads, nope, rope_dim, latent] :
         {std::tuple{1, 3, 2, 5}, {5, 16, 8, 64}, {20, 192, 64, 512}, {3, 64, 32, 33}}) {
      const Tensor cos = Tensor(DType::kF32, 50, rope_dim / 2).randomize(5);
      const Tensor sin = Tensor(DType::kF32, 50, rope_dim / 2).randomize(6);
      const Copy device_cos = copy(cos), device_sin = copy(sin);
      const RopeTable rope = {static_cast<const float*>(cos.view().data),
                              static_cast<const float*>(sin.view().data), rope_dim, layout};
      const RopeTable device_rope = {device_cos.f32(), device_sin.f32(), rope_dim, layout};
      for (const bool scaled : {false, true}) {
        const float* scale = scaled ? scales.data() : nullptr;
        begin({.positions = positions, .slots = slots, .row_scale = scales});
        Tensor want = Tensor(DType::kF32, 11, heads * (nope + rope_dim), 2).randomize(7);
        Tensor got = want;
        const Copy q = copy(got);
        set().rotate_query(q, heads, device_rope, positions, scale);
        ref().rotate_query(want, heads, rope, positions, scale);
        expect_close(q.read(got), want, 1e-6, "rotate");
      }
      const Tensor kv = Tensor(DType::kF32, 11, latent + rope_dim, 1).randomize(8, 2.0f);
      const Tensor weight = Tensor(DType::kF32, 1, latent).randomize(9, 0.2f, 1.0f);
      const Copy device_kv = copy(kv), device_weight = copy(weight);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
        for (const bool plain : {false, true}) {
          Tensor want = Tensor(dtype, 32, latent + rope_dim).fill(3.0f);
          Tensor got = want;
          const Copy rows = copy(got);
          LatentCache cache{want.view().data, dtype, 16, latent, rope_dim};
          if (dtype == DType::kF8E4M3) cache.scale = 0.25f;
          LatentCache device_cache = cache;
          device_cache.data = rows.view().data;
          if (plain) {
            set().store_rows(device_kv, slots, device_cache);
            if (dtype == DType::kF8E4M3) continue;  // the host's default has no codes
            ref().store_rows(kv, slots, cache);
          } else {
            set().store_latent(device_kv, device_weight.f32(), 1e-6f, device_rope, positions, slots,
                               device_cache);
            ref().store_latent(kv, static_cast<const float*>(weight.view().data), 1e-6f, rope,
                               positions, slots, cache);
          }
          expect_close(rows.read(got), want, rounding(dtype), "store");
        }
    }
}

}  // namespace
}  // namespace foresail
