// The fused operations of the CUDA set give, bit for bit, what the operations they stand for give.
#include <fmt/core.h>

#include "gpu_fixture.h"
#include "kernel/random_inputs.h"

namespace foresail {
namespace {

class GpuFused : public GpuTest {
 protected:
  explicit GpuFused(bool deterministic = true) : GpuTest(deterministic) {}

  void expect_same(const Copy& got, const Copy& want, const Tensor& shape,
                   const std::string& what) {
    Tensor a = shape;
    Tensor b = shape;
    got.read(a);
    want.read(b);
    for (int64_t row = 0; row < a.rows(); ++row) expect_same_row(a, row, b, row, what);
  }

  // Experts, chosen ones, hidden, inner, inner of the shared one (0: none).
  using MixtureShape = std::tuple<int, int, int, int, int>;
  void expect_mixed(const MixtureShape& shape, std::initializer_list<int> row_counts,
                    DType act = DType::kF32) {
    const auto& [count, k, hidden, inner, shared_inner] = shape;
    const RandomExperts experts(set(), count, hidden, inner);
    const RandomExperts shared(set(), shared_inner > 0 ? 1 : 0, hidden, shared_inner);
    const auto router = set().pack(Tensor(DType::kBF16, count, hidden).randomize(7).as_weight());
    const Copy weight = copy(Tensor(DType::kF32, 1, hidden).randomize(2, 0.2f, 1.0f));
    for (const int rows : row_counts) {
      const Tensor before = Tensor(DType::kF32, rows, hidden, 4).randomize(3);
      const Copy scratch = copy(Tensor(act, rows, hidden));
      const Copy logits = copy(Tensor(DType::kF32, rows, count));
      const Copy gate_up = copy(Tensor(DType::kF32, rows, 2 * shared_inner));
      const Copy between = copy(Tensor(act, rows, shared_inner));
      Buffer ids(static_cast<size_t>(rows * k) * 4, set().memory());
      Buffer weights(static_cast<size_t>(rows * k) * 4, set().memory());
      Mixture mixture{router.get(), {}, experts.weights, {}};
      mixture.route.expert_count = count;
      mixture.route.top_k = k;
      mixture.route.normalize = true;
      if (shared_inner > 0) mixture.shared = shared.weights[0];
      const RowNorm norm = {weight.f32(), 1e-6f, scratch};
      const MixtureScratch spare = {
          logits, ids.as<int32_t>(), weights.as<float>(), {gate_up, between}};
      const Copy want = copy(before);
      set().KernelSet::mix_experts(want, norm, mixture, spare, want);
      for (int again = 0; again < 3; ++again) {  // what a call leaves behind is no matter
        const Copy got = copy(before);
        set().mix_experts(got, norm, mixture, spare, got);
        expect_same(got, want, before, fmt::format("{} of {} experts, {} rows", k, count, rows));
      }
    }
  }
  void expect_projected(int64_t n_in, int rows, bool normed, DType act = DType::kF32) {
    const Tensor x = Tensor(DType::kF32, rows, n_in, n_in % 4 == 0 ? 4 : 1).randomize(1, 3.0f);
    const Tensor weight = Tensor(DType::kF32, 1, n_in).randomize(2, 0.2f, 1.0f);
    const Tensor bias = Tensor(DType::kF32, 1, 70).randomize(3);
    const Copy device_x = copy(x), device_weight = copy(weight), device_bias = copy(bias);
    const Copy scratch = copy(Tensor(act, rows, n_in));
    const RowNorm norm = {normed ? device_weight.f32() : nullptr, 1e-6f, scratch};
    std::vector<MatrixPtr> matrices;
    std::vector<Tensor> shapes;
    std::vector<Copy> got, want;
    std::vector<RowProduct> got_list, want_list;
    for (const int n_out : {70, 32, 5}) {
      matrices.push_back(set().pack(
          Tensor(DType::kBF16, n_out, n_in).randomize(static_cast<uint64_t>(n_out)).as_weight()));
      shapes.emplace_back(DType::kF32, rows, n_out, 2);
      got.push_back(copy(shapes.back()));
      want.push_back(copy(shapes.back()));
      const float* b = n_out == 70 ? device_bias.f32() : nullptr;
      got_list.push_back({matrices.back().get(), b, got.back()});
      want_list.push_back({matrices.back().get(), b, want.back()});
    }
    set().project(device_x, norm, got_list);
    set().KernelSet::project(device_x, norm, want_list);
    for (size_t i = 0; i < got.size(); ++i)
      expect_same(got[i], want[i], shapes[i], fmt::format("{} rows of {}", rows, n_in));
  }

  void expect_gated(int64_t hidden, int64_t inner, int rows, bool normed, DType act = DType::kF32) {
    const RandomExperts mlp(set(), 1, hidden, inner);
    const Tensor x = Tensor(normed ? DType::kF32 : act, rows, hidden).randomize(1);
    const Tensor weight = Tensor(DType::kF32, 1, hidden).randomize(2, 0.2f, 1.0f);
    const Tensor before = normed ? x : Tensor(DType::kF32, rows, hidden).randomize(3);
    const Copy device_weight = copy(weight), scratch = copy(Tensor(act, rows, hidden));
    const Copy gate_up = copy(Tensor(DType::kF32, rows, 2 * inner));
    const Copy between = copy(Tensor(act, rows, inner));
    const RowNorm norm = {normed ? device_weight.f32() : nullptr, 1e-6f, scratch};
    const Copy got = copy(before), want = copy(before), device_x = copy(x);
    set().gated_mlp(normed ? got : device_x, norm, mlp.weights[0], 0.3f, {gate_up, between}, got);
    set().KernelSet::gated_mlp(normed ? want : device_x, norm, mlp.weights[0], 0.3f,
                               {gate_up, between}, want);
    expect_same(got, want, before, fmt::format("{} rows, {} x {}", rows, hidden, inner));
  }

  // Heads; of each the part that is not rotated, and the one that is; latent numbers.
  using LatentShape = std::tuple<int, int, int, int>;
  void expect_latent_inputs(const LatentShape& shape, int rows, bool scaled, DType dtype) {
    constexpr int kSlots = 256;
    const auto& [heads, nope, rope_dim, latent] = shape;
    std::vector<int32_t> positions, slots;
    std::vector<float> scales;
    for (int i = 0; i < rows; ++i) {
      positions.push_back((i * 13) % 50);
      slots.push_back(i == 4 ? -1 : (i * 7) % kSlots);
      scales.push_back(1.0f + 0.1f * static_cast<float>(i));
    }
    begin({.positions = positions, .slots = slots, .row_scale = scales});
    std::vector<MatrixPtr> uk_t;
    for (int h = 0; h < heads; ++h)
      uk_t.push_back(set().pack(Tensor(DType::kBF16, nope, latent)
                                    .randomize(static_cast<uint64_t>(h) + 1, 0.1f)
                                    .as_weight(true)));
    const Tensor q = Tensor(DType::kF32, rows, heads * (nope + rope_dim), 4).randomize(1);
    const Tensor kv = Tensor(DType::kF32, rows, latent + rope_dim, 1).randomize(2, 2.0f);
    const Copy cos = copy(Tensor(DType::kF32, 50, rope_dim / 2).randomize(5));
    const Copy sin = copy(Tensor(DType::kF32, 50, rope_dim / 2).randomize(6));
    const Copy weight = copy(Tensor(DType::kF32, 1, latent).randomize(9, 0.2f, 1.0f));
    const LatentInputs inputs = {
        .head_count = heads,
        .nope_dim = nope,
        .w_uk_t = uk_t,
        .norm_weight = weight.f32(),
        .norm_eps = 1e-6f,
        .rope = {cos.f32(), sin.f32(), rope_dim,
                 scaled ? RopeLayout::kHalfSplit : RopeLayout::kAdjacentPairs},
        .positions = positions,
        .slots = slots,
        .row_scale = scaled ? scales.data() : nullptr};
    const DType out_type = dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
    const Tensor out_shape(out_type, rows, heads * (latent + rope_dim), 2);
    const Tensor rows_shape = Tensor(dtype, kSlots, latent + rope_dim).fill(3.0f);
    const Copy device_kv = copy(kv);
    const auto run = [&](const Copy& out, const Copy& cache_rows, bool fused) {
      LatentCache cache{cache_rows.view().data, dtype, 16, latent, rope_dim};
      if (dtype == DType::kF8E4M3) cache.scale = 0.25f;
      const Copy device_q = copy(q);  // the call may change it
      if (fused)
        set().latent_inputs(device_q, device_kv, inputs, cache, out);
      else
        set().KernelSet::latent_inputs(device_q, device_kv, inputs, cache, out);
      set().memory().wait();
    };
    const Copy got = copy(out_shape), want = copy(out_shape);
    const Copy got_rows = copy(rows_shape), want_rows = copy(rows_shape);
    run(got, got_rows, true);
    run(want, want_rows, false);
    const std::string what = fmt::format("{} heads, {} rows", heads, rows);
    expect_same(got, want, out_shape, what + ": queries");
    expect_same(got_rows, want_rows, rows_shape, what + ": cache");
  }

  // Heads, of each the latent numbers and the values, numbers of the output.
  using ValuesShape = std::tuple<int, int, int, int>;
  void expect_values_and_output(const ValuesShape& shape, int rows, DType in_type,
                                DType act = DType::kF32) {
    const auto& [heads, latent, value, hidden] = shape;
    std::vector<MatrixPtr> uv;
    for (int h = 0; h < heads; ++h)
      uv.push_back(set().pack(Tensor(DType::kBF16, value, latent)
                                  .randomize(static_cast<uint64_t>(h) + 1, 0.1f)
                                  .as_weight()));
    const auto output =
        set().pack(Tensor(DType::kBF16, hidden, heads * value).randomize(5).as_weight());
    const Copy bias = copy(Tensor(DType::kF32, 1, hidden).randomize(6));
    const Copy in = copy(Tensor(in_type, rows, heads * latent, 4).randomize(7));
    const Tensor before = Tensor(DType::kF32, rows, hidden, 3).randomize(8);
    const Copy values = copy(Tensor(act, rows, heads * value));
    const Copy want = copy(before);
    set().KernelSet::project_values(in, uv, values, 0.3f, {output.get(), bias.f32(), want});
    for (int again = 0; again < 2; ++again) {  // what a call leaves behind is no matter
      const Copy got = copy(before);
      set().project_values(in, uv, values, 0.3f, {output.get(), bias.f32(), got});
      expect_same(got, want, before,
                  fmt::format("{} rows, {} heads of {} x {}", rows, heads, value, latent));
    }
  }
};

TEST_F(GpuFused, ProjectIsNormAndProducts) {
  for (const int64_t n_in : {64, 99, 100, 1536, 2048, 7168})
    for (const int rows : {1, 3, 8, 9, 32, 33})
      for (const bool normed : {true, false}) expect_projected(n_in, rows, normed);
}

TEST_F(GpuFused, GatedMlp) {
  for (const auto& [hidden, inner] : {std::pair{128, 48}, {100, 144}, {64, 33}, {2048, 352}})
    for (const int rows : {1, 8, 9, 17, 33, 100})
      for (const bool normed : {true, false}) expect_gated(hidden, inner, rows, normed);
}

TEST_F(GpuFused, LatentInputs) {
  for (const LatentShape& shape :
       {LatentShape{16, 128, 64, 512}, {3, 36, 8, 72}, {2, 192, 64, 512}, {5, 6, 6, 33}})
    for (const int rows : {1, 5, 8, 11, 40})
      for (const bool scaled : {false, true})
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
          expect_latent_inputs(shape, rows, scaled, dtype);
}

TEST_F(GpuFused, ValuesAndOutput) {
  for (const ValuesShape& shape : {ValuesShape{16, 512, 128, 256}, {3, 72, 24, 70}})
    for (const int rows : {1, 9, 33, 70})
      for (const DType in_type : {DType::kF32, DType::kBF16})
        expect_values_and_output(shape, rows, in_type);
}

TEST_F(GpuFused, MixExperts) {
  for (const MixtureShape& shape : {MixtureShape{64, 6, 256, 176, 352},
                                    {8, 2, 2048, 16, 0},
                                    {8, 2, 256, 128, 0},
                                    {6, 3, 2304, 144, 256},
                                    {300, 8, 144, 128, 128},
                                    {33, 20, 256, 288, 2064},
                                    {300, 8, 68, 32, 48},
                                    {4, 4, 130, 16, 16},
                                    {6, 3, 64, 24, 40},
                                    {33, 20, 64, 288, 2064}})
    expect_mixed(shape, {1, 2, 7, 8, 9, 32, 33});
}

// The same where many rows take another order of sums.
class GpuFusedWide : public GpuFused {
 protected:
  GpuFusedWide() : GpuFused(false) {}
};

TEST_F(GpuFusedWide, ProjectIsNormAndProducts) {
  for (const int64_t n_in : {64, 99, 100, 1536, 2048})
    for (const int rows : {33, 64, 71, 200})
      for (const bool normed : {true, false}) expect_projected(n_in, rows, normed);
  expect_projected(2048, 71, true, DType::kBF16);
}

TEST_F(GpuFusedWide, GatedMlp) {
  for (const auto& [hidden, inner] :
       {std::pair{128, 48}, {100, 128}, {64, 33}, {2048, 320}, {64, 2816}})
    for (const int rows : {33, 100, 300})
      for (const bool normed : {true, false}) expect_gated(hidden, inner, rows, normed);
}

// Results that are left split for the next product, in tiles as large as its own and twice as
// large; with a last block of half the results; and that are not.
TEST_F(GpuFusedWide, GatedMlpOfBF16Rows) {
  for (const auto& [hidden, inner] :
       {std::pair{128, 48}, {100, 128}, {64, 33}, {2048, 320}, {64, 2816}, {256, 4224}})
    for (const int rows : {33, 100, 257, 300, 390})
      for (const bool normed : {true, false})
        expect_gated(hidden, inner, rows, normed, DType::kBF16);
  expect_gated(2304, 2880, 390, true, DType::kBF16);
}

TEST_F(GpuFusedWide, LatentInputs) {
  for (const LatentShape& shape :
       {LatentShape{16, 128, 64, 512}, {3, 36, 8, 72}, {2, 192, 64, 512}, {5, 6, 6, 33}})
    for (const int rows : {33, 40, 70, 200})
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
        expect_latent_inputs(shape, rows, dtype == DType::kF32, dtype);
}

// Where queries are not scaled: LatentInputs above has this cache only where they are.
TEST_F(GpuFusedWide, LatentInputsOfAnF32Cache) {
  for (const LatentShape& shape : {LatentShape{16, 128, 64, 512}, {3, 36, 8, 72}, {64, 64, 8, 512}})
    for (const int rows : {33, 64, 70}) expect_latent_inputs(shape, rows, false, DType::kF32);
}

// Values that are split by their product, and not; by blocks that split their rows themselves, have
// no room for them, or are too many; a last tile of few rows; a chunk of two heads' values.
TEST_F(GpuFusedWide, ValuesAndOutput) {
  for (const ValuesShape& shape : {ValuesShape{16, 512, 128, 2048},
                                   {4, 512, 128, 256},
                                   {4, 256, 80, 130},
                                   {2, 1000, 64, 70},
                                   {1, 128, 64, 64},
                                   {3, 72, 24, 70},
                                   {64, 64, 32, 9000}})
    for (const int rows : {33, 64, 71, 200})
      for (const DType in_type : {DType::kF32, DType::kBF16})
        expect_values_and_output(shape, rows, in_type);
  expect_values_and_output({16, 64, 128, 64}, 700, DType::kBF16);  // large tiles
  expect_values_and_output({4, 256, 64, 130}, 40, DType::kBF16, DType::kBF16);
}

TEST_F(GpuFusedWide, MixExperts) {
  for (const MixtureShape& shape : {MixtureShape{64, 6, 256, 176, 352},
                                    {8, 2, 2048, 16, 0},
                                    {6, 3, 2304, 192, 256},
                                    {64, 6, 256, 192, 320},
                                    {384, 8, 144, 128, 128},
                                    {400, 8, 64, 32, 48},
                                    {4, 4, 130, 16, 16},
                                    {33, 20, 64, 288, 2064}})
    expect_mixed(shape, {3, 32, 33, 64, 130, 500});
}

// Up to more pairs than of f32 rows are worked on together, and than of bf16 rows.
TEST_F(GpuFusedWide, MixExpertsOfBF16Rows) {
  for (const MixtureShape& shape : {MixtureShape{8, 3, 256, 128, 144},
                                    {64, 6, 256, 192, 320},
                                    {6, 3, 2304, 192, 2816},
                                    {4, 4, 130, 16, 16},
                                    {384, 8, 144, 128, 128}})
    expect_mixed(shape, {3, 40, 130, 300, 700}, DType::kBF16);
  expect_mixed({8, 6, 256, 128, 192}, {1400, 2730, 2731}, DType::kBF16);
}

// Little enough to be run under compute-sanitizer.
TEST_F(GpuFusedWide, FewTiles) {
  for (const int rows : {5, 41}) expect_latent_inputs({3, 36, 8, 72}, rows, false, DType::kBF16);
  expect_projected(100, 41, true);
  expect_values_and_output({2, 320, 96, 70}, 41, DType::kBF16);
  expect_values_and_output({2, 100, 32, 70}, 41, DType::kF32);
  expect_mixed({8, 3, 256, 128, 192}, {3, 33});
  expect_mixed({3, 2, 128, 128, 192}, {41, 200}, DType::kBF16);
  expect_gated(64, 2816, 390, true, DType::kBF16);
}

// What one launch does, and little else: this is what is run under compute-sanitizer.
TEST_F(GpuFused, MixFewRows) {
  expect_mixed({8, 3, 256, 128, 144}, {1, 2, 5});
  expect_mixed({40, 2, 128, 128, 0}, {2});
}

}  // namespace
}  // namespace foresail
