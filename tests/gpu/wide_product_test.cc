// Products of many rows in the order of sums that warpgroup instructions have, beside the oracle.
#include <fmt/format.h>

#include "product_fixture.h"

namespace foresail {
namespace {

class GpuWideProducts : public ProductTest {
 protected:
  GpuWideProducts() : ProductTest(false, false) {}

  void expect_experts(int rows, int count, int k, int64_t hidden, int64_t inner,
                      DType act = DType::kF32) {
    const RandomExperts mine(set(), count + 1, hidden, inner);
    const RandomExperts theirs(ref(), count + 1, hidden, inner);
    const Tensor x = Tensor(act, rows, hidden, 4).randomize(1);
    Tensor got = Tensor(DType::kF32, rows, hidden).randomize(2);
    Tensor want = got;
    const Chosen chosen(set(), rows, count, k);
    const Copy out = copy(got);
    set().experts(copy(x), mine.weights, chosen.device_ids(), chosen.device_weights(), k, out);
    ref().experts(x, theirs.weights, chosen.ids.data(), chosen.weights.data(), k, want);
    // bf16 rows make bf16 rows between the products.
    expect_close(out.read(got), want, act == DType::kBF16 ? 8e-3 : 5e-5,
                 fmt::format("{} rows {} experts", rows, count));
  }
};

TEST_F(GpuWideProducts, LinearMatchesOracle) {
  const int64_t shapes[][3] = {{33, 4, 1},      {40, 100, 130},  {64, 1000, 6000}, {65, 36, 17},
                               {96, 64, 16},    {97, 100, 130},  {128, 4, 1},      {129, 60, 257},
                               {200, 68, 3000}, {300, 2048, 70}, {520, 576, 9000}, {1100, 36, 128}};
  for (const auto& [rows, n_in, n_out] : shapes)
    expect_linear(rows, full_or_brief(n_in, std::min<int64_t>(n_in, 130)), n_out);
}

TEST_F(GpuWideProducts, RowsDoNotDependOnTheBatch) {
  constexpr int kRows = 700;
  for (const int64_t n_in : {full_or_brief(2304, 324), 100})
    for (const int64_t n_out : {83, 7000}) {
      const Tensor source = Tensor(DType::kBF16, n_out, n_in).randomize(6);
      const Tensor x = Tensor(DType::kF32, kRows, n_in).randomize(7);
      const auto w = set().pack(source.as_weight());
      Tensor all(DType::kF32, kRows, n_out);
      const Copy all_out = copy(all);
      set().linear(copy(x), *w, nullptr, 1.0f, false, all_out);
      all_out.read(all);
      for (const int count : full_or_brief<std::vector<int>>(
               {33, 48, 64, 65, 96, 127, 128, 129, 385}, {33, 65, 129, 385})) {
        std::vector<int> which = shuffled(kRows, static_cast<uint64_t>(count));
        which.resize(static_cast<size_t>(count));
        Tensor some(DType::kF32, count, n_out);
        const Copy out = copy(some);
        set().linear(copy(x.pick(which)), *w, nullptr, 1.0f, false, out);
        out.read(some);
        for (int i = 0; i < count; ++i)
          expect_same_row(some, i, all, which[static_cast<size_t>(i)],
                          "count " + std::to_string(count));
      }
    }
}

TEST_F(GpuWideProducts, HeadProjections) {
  for (const HeadShape& shape : {HeadShape{16, 512, 64, 128, 128}, {5, 256, 64, 64, 128}}) {
    expect_head_projections(200, shape);
    expect_head_projections(shape.heads == 16 ? 40 : 70, shape);
  }
}

// A product of heads is, bit for bit, the products of each head by itself, whoever splits its rows.
TEST_F(GpuWideProducts, HeadsAreProductsOfTheirOwn) {
  for (const auto& [heads, n_in, n_out] : {std::tuple{4, 512, 128},
                                           {16, 512, 128},
                                           {16, 128, 512},
                                           {5, 100, 72},
                                           {3, 832, 80},
                                           {2, 1000, 48},
                                           {64, 64, 64}})
    for (const int rows : {33, 64, 65, 200})
      for (const DType act : {DType::kF32, DType::kBF16}) {
        std::vector<MatrixPtr> weights;
        for (int h = 0; h < heads; ++h)
          weights.push_back(set().pack(Tensor(DType::kBF16, n_out, n_in)
                                           .randomize(static_cast<uint64_t>(h) + 1, 0.1f)
                                           .as_weight()));
        const Copy in = copy(Tensor(act, rows, heads * n_in, 4).randomize(1));
        Tensor got(DType::kF32, rows, heads * n_out, 2);
        Tensor want = got;
        const Copy got_rows = copy(got), want_rows = copy(want);
        set().value_up(in, weights, got_rows);
        for (int h = 0; h < heads; ++h)
          set().linear(columns(in, int64_t{h} * n_in, n_in), *weights[static_cast<size_t>(h)],
                       nullptr, 1.0f, false, columns(want_rows, int64_t{h} * n_out, n_out));
        got_rows.read(got);
        want_rows.read(want);
        for (int row = 0; row < rows; ++row)
          expect_same_row(got, row, want, row,
                          fmt::format("{} heads, {} x {}, {} rows", heads, n_in, n_out, rows));
      }
}

// What ends a product of gate and up changes no bit of it.
TEST_F(GpuWideProducts, GatedMlp) {
  for (const auto& [rows, hidden, inner] : {std::tuple{33, 128, 48},
                                            {64, 2048, 352},
                                            {100, 100, 144},
                                            {150, 64, 2816},
                                            {300, 64, 2816}}) {
    const RandomExperts mlp(set(), 1, hidden, inner);
    const Tensor x = Tensor(DType::kF32, rows, hidden).randomize(1);
    const Tensor before = Tensor(DType::kF32, rows, hidden).randomize(3);
    const Copy gate_up = copy(Tensor(DType::kF32, rows, 2 * inner));
    const Copy between = copy(Tensor(DType::kF32, rows, inner));
    const Copy device_x = copy(x), got = copy(before), want = copy(before);
    set().gated_mlp(device_x, {}, mlp.weights[0], 0.3f, {gate_up, between}, got);
    set().KernelSet::gated_mlp(device_x, {}, mlp.weights[0], 0.3f, {gate_up, between}, want);
    Tensor got_rows = before, want_rows = before;
    got.read(got_rows);
    want.read(want_rows);
    for (int row = 0; row < rows; ++row)
      expect_same_row(got_rows, row, want_rows, row, fmt::format("{} x {}", hidden, inner));
  }
}

// Tiles full, half empty and of no rows at all; gated in the product and after it; of every size.
TEST_F(GpuWideProducts, Experts) {
  for (const auto& [rows, count, k, hidden, inner] : {std::tuple{300, 6, 4, 256, 112},
                                                      {300, 6, 4, 68, 20},
                                                      {130, 2, 1, 128, 64},
                                                      {1000, 3, 2, 2048, 1408},
                                                      {34, 4, 1, 2048, 1408},
                                                      {100, 40, 3, 128, 64},
                                                      {100, 20, 3, 68, 20},
                                                      {100, 20, 3, 260, 112},
                                                      {100, 8, 3, 128, 80},
                                                      {600, 40, 3, 64, 32},
                                                      {3000, 5, 3, 16, 16} /* in parts */})
    expect_experts(rows, count, k, full_or_brief(hidden, std::min(hidden, 260)),
                   full_or_brief(inner, std::min(inner, 128)));
}

TEST_F(GpuWideProducts, ExpertsOfBF16Rows) {
  for (const auto& [rows, count, k, hidden, inner] : {std::tuple{300, 6, 4, 256, 112},
                                                      {100, 40, 3, 128, 64},
                                                      {100, 20, 3, 68, 20},
                                                      {100, 8, 3, 260, 80}})
    expect_experts(rows, count, k, hidden, inner, DType::kBF16);
}

// Little enough to be run under compute-sanitizer.
TEST_F(GpuWideProducts, FewTiles) {
  expect_linear(97, 100, 130);
  expect_linear(40, 100, 130);
  expect_experts(130, 2, 1, 128, 64);
  expect_experts(40, 8, 2, 128, 64);
  expect_experts(40, 8, 2, 128, 64, DType::kBF16);
}

}  // namespace
}  // namespace foresail
