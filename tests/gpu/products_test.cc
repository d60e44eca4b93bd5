// Matrix products and experts of the CUDA set beside the oracle, and their batch invariance.
#include <set>

#include "kernel/random_inputs.h"
#include "product_fixture.h"

namespace foresail {
namespace {

class GpuProducts : public ProductTest {
 protected:
  GpuProducts() : ProductTest(true, true) {}
};

TEST_F(GpuProducts, LinearMatchesOracle) {
  const int64_t shapes[][3] = {{1, 1, 1},     {1, 64, 16},    {2, 63, 17},     {3, 129, 47},
                               {7, 32, 100},  {9, 128, 64},   {17, 48, 15},    {1, 4099, 65},
                               {33, 96, 70},  {64, 66, 35},   {65, 2048, 130}, {270, 72, 300},
                               {31, 256, 80}, {3, 40, 32791}, {8, 136, 32768}};
  for (const auto& [rows, n_in, n_out] : shapes) expect_linear(rows, n_in, n_out);
}

// Little enough to be run under compute-sanitizer, with each kind of block once.
TEST_F(GpuProducts, FewTiles) {
  const int64_t shapes[][3] = {{2, 63, 17},  {7, 32, 100}, {12, 48, 36},  {31, 256, 80},
                               {33, 96, 70}, {65, 66, 35}, {3, 16, 32791}};
  for (const auto& [rows, n_in, n_out] : shapes) expect_linear(rows, n_in, n_out);
}

TEST_F(GpuProducts, PacksEverySource) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const bool transposed : {false, true}) {
      const OddWeight source(dtype);
      const HostMatrix host = source.matrix(transposed);
      const auto w = set().pack(host);
      const auto w_ref = ref().pack(host);
      const Tensor x = Tensor(DType::kF32, 3, host.n_in).randomize(5);
      Tensor got(DType::kF32, 3, host.n_out);
      Tensor want = got;
      const Copy out = copy(got);
      set().linear(copy(x), *w, nullptr, 1.0f, false, out);
      ref().linear(x, *w_ref, nullptr, 1.0f, false, want);
      expect_close(out.read(got), want, dtype == DType::kBF16 ? kProductTolerance : 4e-3,
                   std::string(dtype_name(dtype)));
    }
}

// A matrix that is packed in several parts: unit vectors bring its columns back.
TEST_F(GpuProducts, LargeMatricesArePackedInParts) {
  const Tensor source = Tensor(DType::kF32, 20000, 1000).randomize(8);
  const auto w = set().pack(source.as_weight());
  Tensor x(DType::kF32, 2, 1000);
  x.fill(0.0f);
  x.set(0, 3, 1.0f);
  x.set(1, 998, 1.0f);
  Tensor got(DType::kF32, 2, 20000);
  const Copy out = copy(got);
  set().linear(copy(x), *w, nullptr, 1.0f, false, out);
  out.read(got);
  for (int64_t o = 0; o < 20000; ++o) {
    ASSERT_EQ(got.at(0, o), to_float(to_bf16(source.at(o, 3)))) << o;
    ASSERT_EQ(got.at(1, o), to_float(to_bf16(source.at(o, 998)))) << o;
  }
}

TEST_F(GpuProducts, RowsDoNotDependOnTheBatch) {
  constexpr int kRows = 150;
  for (const int64_t n_in : {2304, 100})
    for (const DType act : {DType::kF32, DType::kBF16}) {
      const Tensor source = Tensor(DType::kBF16, 83, n_in).randomize(6);
      const Tensor x = Tensor(act, kRows, n_in).randomize(7);
      const auto w = set().pack(source.as_weight());
      Tensor all(DType::kF32, kRows, 83);
      const Copy all_out = copy(all);
      set().linear(copy(x), *w, nullptr, 1.0f, false, all_out);
      all_out.read(all);
      for (int count : {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 100}) {
        std::vector<int> which = shuffled(kRows, static_cast<uint64_t>(count));
        which.resize(static_cast<size_t>(count));
        Tensor some(DType::kF32, count, 83);
        const Copy out = copy(some);
        set().linear(copy(x.pick(which)), *w, nullptr, 1.0f, false, out);
        out.read(some);
        for (int i = 0; i < count; ++i)
          expect_same_row(some, i, all, which[static_cast<size_t>(i)],
                          "count " + std::to_string(count));
      }
    }
}

TEST_F(GpuProducts, HeadProjections) {
  for (const HeadShape& shape :
       {HeadShape{16, 512, 64, 128, 128}, {5, 256, 64, 64, 128}, {3, 33, 6, 7, 9}})
    for (const int rows : {1, 11, 70}) expect_head_projections(rows, shape);
}

TEST_F(GpuProducts, RouteMatchesOracle) {
  std::vector<float> large(384);
  for (size_t i = 0; i < large.size(); ++i)
    large[i] = (static_cast<float>((i * 37) % 19) / 9.0f - 1.0f) / 256.0f;
  Tensor bias(DType::kF32, 1, 384);
  for (int i = 0; i < 384; ++i) bias.set(0, i, large[static_cast<size_t>(i)]);
  const Copy device_bias = copy(bias);
  for (const auto& [experts, groups, top_groups, k] : kRouteShapes)
    for (const GateScore score : {GateScore::kSoftmax, GateScore::kSigmoid})
      for (const GroupScore group : {GroupScore::kNone, GroupScore::kMax, GroupScore::kTopTwoSum})
        for (const bool normalize : {false, true}) {
          const bool biased = group != GroupScore::kMax;
          RouteParams p{score, group, experts, k, groups, top_groups, normalize, 2.5f, nullptr};
          const Tensor logits = Tensor(DType::kF32, 40, experts, 1).randomize(9, 2.0f);
          const size_t n = 40 * static_cast<size_t>(k);
          std::vector<int32_t> want_ids(n), got_ids(n);
          std::vector<float> want_weights(n), got_weights(n);
          p.bias = biased ? large.data() : nullptr;
          ref().route(logits, p, want_ids.data(), want_weights.data());
          Buffer ids(n * 4, set().memory()), weights(n * 4, set().memory());
          p.bias = biased ? device_bias.f32() : nullptr;
          set().route(copy(logits), p, ids.as<int32_t>(), weights.as<float>());
          set().memory().download(got_ids.data(), ids.data(), n * 4);
          set().memory().download(got_weights.data(), weights.data(), n * 4);
          EXPECT_EQ(got_ids, want_ids) << "E " << experts << " k " << k;
          for (size_t i = 0; i < n; ++i)
            ASSERT_NEAR(got_weights[i], want_weights[i], 1e-5 * std::abs(want_weights[i]) + 1e-9);
        }
}

TEST_F(GpuProducts, RouteWithoutNumbersStaysInRange) {
  Tensor logits = Tensor(DType::kF32, 4, 16).fill(0.5f);
  for (int e = 0; e < 16; ++e) logits.set(1, e, std::nanf(""));
  logits.set(2, 3, std::nanf(""));
  logits.set(3, 0, std::numeric_limits<float>::infinity());
  for (const GateScore score : {GateScore::kSoftmax, GateScore::kSigmoid})
    for (const GroupScore group : {GroupScore::kNone, GroupScore::kTopTwoSum}) {
      const RouteParams p{score, group, 16, 3, 4, 2, true, 1.0f, nullptr};
      Buffer ids(48, set().memory()), weights(48, set().memory());
      set().route(copy(logits), p, ids.as<int32_t>(), weights.as<float>());
      int32_t got[12];
      set().memory().download(got, ids.data(), 48);
      EXPECT_EQ(std::vector<int32_t>(got, got + 3), (std::vector<int32_t>{0, 1, 2}));
      for (int row = 0; row < 4; ++row) {
        const std::set<int32_t> distinct(got + row * 3, got + row * 3 + 3);
        EXPECT_EQ(distinct.size(), 3u);
        EXPECT_GE(*distinct.begin(), 0);
        EXPECT_LT(*distinct.rbegin(), 16);
      }
    }
}

TEST_F(GpuProducts, ExpertsMatchOracleAndDoNotDependOnTheBatch) {
  for (const auto& [rows, count, k, hidden, inner] : {std::tuple{1, 8, 2, 128, 48},
                                                      {40, 8, 3, 130, 33},
                                                      {5, 4, 4, 68, 16},
                                                      {70, 2, 1, 32, 8},
                                                      {300, 6, 4, 256, 112},
                                                      {3000, 5, 3, 16, 16} /* in parts */}) {
    const RandomExperts mine(set(), count, hidden, inner);
    const RandomExperts theirs(ref(), count, hidden, inner);
    const Tensor x = Tensor(DType::kF32, rows, hidden, 4).randomize(1);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (int row = 0; row < rows; ++row) {
      const std::vector<int> order = shuffled(count, static_cast<uint64_t>(row) + 3);
      for (int j = 0; j < k; ++j) {
        ids.push_back(order[static_cast<size_t>(j)]);
        weights.push_back(0.1f + 0.2f * static_cast<float>((row + j) % 5));
      }
    }
    const auto run = [&](const Tensor& input, const int32_t* id, const float* weight, Tensor& out) {
      const size_t n = static_cast<size_t>(input.rows() * k);
      Buffer device_ids(n * 4, set().memory()), device_weights(n * 4, set().memory());
      set().memory().upload(device_ids.data(), id, n * 4);
      set().memory().upload(device_weights.data(), weight, n * 4);
      const Copy device_out = copy(out);
      set().experts(copy(input), mine.weights, device_ids.as<int32_t>(), device_weights.as<float>(),
                    k, device_out);
      device_out.read(out);
    };
    Tensor got = Tensor(DType::kF32, rows, hidden).randomize(2);
    Tensor want = got;
    const Tensor before = got;
    run(x, ids.data(), weights.data(), got);
    ref().experts(x, theirs.weights, ids.data(), weights.data(), k, want);
    expect_close(got, want, 5e-5, fmt::format("{} rows {} experts", rows, count));
    for (const int row : {0, rows / 2, rows - 1}) {
      Tensor alone = before.pick({row});
      run(x.pick({row}), ids.data() + row * k, weights.data() + row * k, alone);
      expect_same_row(alone, 0, got, row, "alone");
    }
  }
}

}  // namespace
}  // namespace foresail
