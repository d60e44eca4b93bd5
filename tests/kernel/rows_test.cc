#include "kernel_fixture.h"

namespace foresail {
namespace {

class Rows : public KernelTest {};
FORESAIL_FOR_ALL_SETS(Rows);

constexpr DType kDtypes[] = {DType::kF32, DType::kBF16};

double rounding(DType out) {
  if (out == DType::kF8E4M3) return 7e-2;  // one code apart where a value lies between two
  return out == DType::kBF16 ? 8e-3 : 2e-6;
}

TEST_P(Rows, NormConvertEmbed) {
  PooledSet set(GetParam());
  for (const int64_t cols : {1, 7, 16, 31, 64, 1000})
    for (const DType in : kDtypes)
      for (const DType out_dtype : kDtypes) {
        const std::string what = GetParam().label() + " cols " + std::to_string(cols);
        const Tensor x = Tensor(in, 23, cols, 3).randomize(1, 3.0f);
        const Tensor weight = Tensor(DType::kF32, 1, cols).randomize(2, 0.2f, 1.0f);
        const float* w = static_cast<const float*>(weight.view().data);
        Tensor got(out_dtype, 23, cols, 1);
        Tensor want = got;
        set->rms_norm(x, w, 1e-6f, got);
        oracle()->rms_norm(x, w, 1e-6f, want);
        expect_close(got, want, rounding(out_dtype), what + " norm");
        for (const int row : {0, 5, 22}) {
          Tensor alone(out_dtype, 1, cols);
          set->rms_norm(x.pick({row}), w, 1e-6f, alone);
          expect_same_row(alone, 0, got, row, what);
        }
        set->convert(x, got);
        oracle()->convert(x, want);
        for (int row = 0; row < 23; ++row) expect_same_row(got, row, want, row, what + " convert");
        std::vector<int32_t> ids;
        for (int i = 0; i < 23; ++i) ids.push_back((i * 7) % 23);
        set->embed(ids, x, 12.0f, got);
        oracle()->embed(ids, x, 12.0f, want);
        for (int row = 0; row < 23; ++row) expect_same_row(got, row, want, row, what + " embed");
      }
}

TEST_P(Rows, ConvertRoundsToEvenAndKeepsSpecials) {
  PooledSet set(GetParam());
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {0.0f,          -0.0f,  1.00390625f, 1.01171875f, inf,     -inf,
                          std::nanf(""), 1e-40f, 3.4e38f,     -1e-45f,     65504.f, 0x1.fffffep0f};
  Tensor in(DType::kF32, 1, 12);
  for (int i = 0; i < 12; ++i) in.set(0, i, values[i]);
  Tensor got(DType::kBF16, 1, 12);
  set->convert(in, got);
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(static_cast<uint16_t*>(got.view().data)[i], to_bf16(values[i]).bits) << values[i];
}

TEST_P(Rows, SiluMul) {
  PooledSet set(GetParam());
  for (const int64_t inner : {1, 8, 17, 512})
    for (const DType out_dtype : kDtypes) {
      Tensor gate_up = Tensor(DType::kF32, 9, 2 * inner, 1).randomize(1, 4.0f);
      gate_up.set(0, 0, -1000.0f);  // exp overflows: silu is -0
      gate_up.set(1, 0, 1000.0f);
      gate_up.set(2, 0, -88.5f);
      Tensor got(out_dtype, 9, inner, 2);
      Tensor want = got;
      set->silu_mul(gate_up, got);
      oracle()->silu_mul(gate_up, want);
      for (int64_t r = 0; r < 9; ++r)
        for (int64_t c = 0; c < inner; ++c)
          EXPECT_NEAR(got.at(r, c), want.at(r, c),
                      std::abs(want.at(r, c)) * (out_dtype == DType::kBF16 ? 4e-3 : 1e-6) + 1e-30);
      Tensor alone(out_dtype, 1, inner);
      set->silu_mul(gate_up.pick({5}), alone);
      expect_same_row(alone, 0, got, 5, "silu");
    }
}

struct Tables {
  Tables(int rope_dim, RopeLayout layout) : cos(DType::kF32, 50, rope_dim / 2), sin(cos) {
    for (int p = 0; p < 50; ++p)
      for (int i = 0; i < rope_dim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / rope_dim);
        cos.set(p, i, static_cast<float>(1.1 * std::cos(angle)));
        sin.set(p, i, static_cast<float>(1.1 * std::sin(angle)));
      }
    rope = {cos.f32(), sin.f32(), rope_dim, layout};
  }
  Tensor cos, sin;
  RopeTable rope;
};

TEST_P(Rows, RotateQueryAndStoreLatent) {
  PooledSet set(GetParam());
  for (const RopeLayout layout : {RopeLayout::kAdjacentPairs, RopeLayout::kHalfSplit})
    for (const auto& [heads, nope, rope_dim, latent] :
         {std::tuple{1, 3, 2, 5}, {5, 16, 8, 64}, {20, 192, 64, 512}, {3, 64, 32, 33}}) {
      const Tables tables(rope_dim, layout);
      const std::vector<int32_t> positions = {0, 49, 3, 17, 17, 1, 30};
      const std::vector<float> scale = {1.0f, 1.5f, 1.0f, 0.3f, 1.0f, 1.1f, 1.0f};
      const Tensor q = Tensor(DType::kF32, 7, heads * (nope + rope_dim), 3).randomize(1);
      for (const float* row_scale : {static_cast<const float*>(nullptr), scale.data()}) {
        Tensor got = q;
        Tensor want = q;
        set->rotate_query(got, heads, tables.rope, positions, row_scale);
        oracle()->rotate_query(want, heads, tables.rope, positions, row_scale);
        expect_close(got, want, 1e-6, GetParam().label() + " rotate");
      }
      const Tensor kv = Tensor(DType::kF32, 7, latent + rope_dim, 1).randomize(2);
      const Tensor weight = Tensor(DType::kF32, 1, latent).randomize(3, 0.2f, 1.0f);
      const std::vector<int32_t> slots = {4, 0, 9, -1, 2, 11, -7};
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
        Tensor got = Tensor(dtype, 12, latent + rope_dim).fill(-3.0f);
        Tensor want = got;
        const auto cache = [&, l = latent, r = rope_dim](Tensor& t) {
          return LatentCache{t.view().data, dtype, 4, l, r, 0.5f};
        };
        const float* w = static_cast<const float*>(weight.view().data);
        set->store_latent(kv, w, 1e-6f, tables.rope, positions, slots, cache(got));
        oracle()->store_latent(kv, w, 1e-6f, tables.rope, positions, slots, cache(want));
        expect_close(got, want, rounding(dtype), GetParam().label() + " store");
        for (int row : {1, 3, 5, 6, 7, 8, 10})
          for (int64_t c = 0; c < got.cols(); ++c) EXPECT_EQ(got.at(row, c), -3.0f);
      }
    }
}

}  // namespace
}  // namespace foresail
