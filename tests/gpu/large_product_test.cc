// Products in tiles of 128 rows, as a prefill has them: beside the oracle, and beside products of
// fewer rows, whose order of sums is the same.
#include <fmt/format.h>

#include <cmath>

#include "product_fixture.h"

namespace foresail {
namespace {

class GpuLargeProducts : public ProductTest {
 protected:
  GpuLargeProducts() : ProductTest(false, false) {}

  void expect_independent_rows(int64_t n_in, int64_t n_out, std::initializer_list<int> counts,
                               DType act) {
    constexpr int kRows = 700;
    const auto w = set().pack(Tensor(DType::kBF16, n_out, n_in).randomize(6).as_weight());
    const Tensor x = Tensor(act, kRows, n_in).randomize(7);
    Tensor all(DType::kF32, kRows, n_out);
    const Copy all_out = copy(all);
    set().linear(copy(x), *w, nullptr, 1.0f, false, all_out);
    all_out.read(all);
    for (const int count : counts) {
      std::vector<int> which = shuffled(kRows, static_cast<uint64_t>(count));
      which.resize(static_cast<size_t>(count));
      Tensor some(DType::kF32, count, n_out);
      const Copy out = copy(some);
      set().linear(copy(x.pick(which)), *w, nullptr, 1.0f, false, out);
      out.read(some);
      for (int i = 0; i < count; ++i)
        expect_same_row(some, i, all, which[static_cast<size_t>(i)], fmt::format("of {}", count));
    }
  }

  // Keys and values of all heads are, bit for bit, the products of each head by itself.
  void expect_heads(int heads, int nope, int value, int keys, DType dtype) {
    constexpr int kLatent = 72, kRope = 8, kPage = 16;
    const int pages = (keys + kPage - 1) / kPage;
    std::vector<int32_t> table;
    for (int page = 0; page < pages; ++page) table.push_back(page);
    const std::vector<SequenceRows> sequences = {{0, 1, keys, table.data()}};
    const std::vector<int32_t> positions = {keys - 1};
    begin({.positions = positions, .sequences = sequences, .page_size = kPage});
    std::vector<MatrixPtr> uk, uv;
    for (int h = 0; h < heads; ++h) {
      const auto seed = static_cast<uint64_t>(2 * h + 1);
      uk.push_back(set().pack(Tensor(DType::kBF16, nope, kLatent).randomize(seed).as_weight()));
      uv.push_back(
          set().pack(Tensor(DType::kBF16, value, kLatent).randomize(seed + 1).as_weight()));
    }
    const Copy rows = copy(Tensor(dtype, int64_t{pages} * kPage, kLatent + kRope).randomize(5));
    LatentCache cache{rows.view().data, dtype, kPage, kLatent, kRope};
    cache.page_count = pages;
    Tensor key_rows(DType::kF32, keys, heads * nope), value_rows(DType::kF32, keys, heads * value);
    Tensor want_keys = key_rows, want_values = value_rows;
    const Copy got_k = copy(key_rows), got_v = copy(value_rows), want_k = copy(key_rows),
               want_v = copy(value_rows), rope = copy(Tensor(DType::kF32, keys, kRope));
    set().expand_latent(sequences[0], 0, cache, uk, uv, got_k, rope, got_v);
    MatrixView latents = columns(rows, 0, kLatent);
    latents.rows = keys;
    for (int h = 0; h < heads; ++h) {
      const auto head = static_cast<size_t>(h);
      set().linear(latents, *uk[head], nullptr, 1.0f, false, columns(want_k, h * nope, nope));
      set().linear(latents, *uv[head], nullptr, 1.0f, false, columns(want_v, h * value, value));
    }
    got_k.read(key_rows), got_v.read(value_rows), want_k.read(want_keys), want_v.read(want_values);
    for (int row = 0; row < keys; ++row) {
      const std::string what = fmt::format("{} heads, {} keys", heads, keys);
      expect_same_row(key_rows, row, want_keys, row, what + ": keys");
      expect_same_row(value_rows, row, want_values, row, what + ": values");
    }
  }

  // Experts are, bit for bit, products of all rows, of which those count that chose them.
  void expect_own_products(int rows, int count, int k, int64_t hidden, int64_t inner, DType act) {
    const RandomExperts experts(set(), count + 1, hidden, inner);
    const Copy x = copy(Tensor(act, rows, hidden).randomize(1));
    const Chosen chosen(set(), rows, count, k);
    Tensor got = Tensor(DType::kF32, rows, hidden).randomize(2);
    Tensor want = got;
    const Copy out = copy(got);
    set().experts(x, experts.weights, chosen.device_ids(), chosen.device_weights(), k, out);
    out.read(got);
    const Copy gate_up = copy(Tensor(DType::kF32, rows, 2 * inner));
    const Copy between = copy(Tensor(act, rows, inner));
    Tensor results(DType::kF32, rows, hidden);
    const Copy device_results = copy(results);
    for (int e = 0; e < count; ++e) {
      const ExpertWeights& expert = experts.weights[static_cast<size_t>(e)];
      set().linear(x, *expert.gate_up, nullptr, 1.0f, false, gate_up);
      set().silu_mul(gate_up, between);
      set().linear(between, *expert.down, nullptr, 1.0f, false, device_results);
      device_results.read(results);
      for (int row = 0; row < rows; ++row)
        for (int j = 0; j < k; ++j) {
          const auto pair = static_cast<size_t>(row * k + j);
          if (chosen.ids[pair] != e) continue;
          for (int64_t col = 0; col < hidden; ++col)
            want.set(row, col,
                     std::fma(chosen.weights[pair], results.at(row, col), want.at(row, col)));
        }
    }
    for (int row = 0; row < rows; ++row)
      expect_same_row(got, row, want, row, fmt::format("{} rows, {} experts", rows, count));
  }
};

// Items of 128 outputs and of 256; the last of few rows, and of few outputs.
TEST_F(GpuLargeProducts, LinearMatchesOracle) {
  const int64_t shapes[][3] = {
      {1100, 36, 5000}, {2100, 100, 700}, {300, 68, 12000}, {2050, 64, 2048}};
  for (const auto& [rows, n_in, n_out] : shapes) expect_linear(rows, n_in, n_out);
}

TEST_F(GpuLargeProducts, RowsDoNotDependOnTheBatch) {
  for (const DType act : {DType::kF32, DType::kBF16})
    for (const int64_t n_in : {324, 100})
      expect_independent_rows(n_in, 7000, {33, 64, 129, 385, 640}, act);
}

TEST_F(GpuLargeProducts, HeadsAreProductsOfTheirOwn) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    expect_heads(16, 128, 128, 600, dtype);
    expect_heads(20, 48, 80, 700, dtype);
    expect_heads(3, 24, 40, 300, dtype);
  }
}

// Tiles of every size; results that are left split, and that are not; more pairs than are worked on
// together, of f32 rows and of bf16 rows.
TEST_F(GpuLargeProducts, ExpertsAreProductsOfTheirOwn) {
  for (const DType act : {DType::kBF16, DType::kF32})
    for (const auto& [rows, count, k, hidden, inner] : {std::tuple{700, 6, 4, 256, 192},
                                                        {300, 6, 4, 68, 112},
                                                        {300, 20, 3, 100, 64},
                                                        {300, 40, 3, 128, 64},
                                                        {100, 40, 3, 128, 64},
                                                        {300, 3, 2, 64, 20},
                                                        {2100, 6, 4, 64, 64},
                                                        {4100, 5, 4, 64, 64}})
      expect_own_products(rows, count, k, hidden, inner, act);
}

// What a plan counts for them is what they take.
TEST_F(GpuLargeProducts, ExpertsFitTheirPlan) {
  constexpr int kExperts = 64, kChoices = 8;
  constexpr int64_t kHidden = 2048, kInner = 512;
  const RandomExperts one(set(), 1, kHidden, kInner);
  const std::vector<ExpertWeights> experts(kExperts, one.weights[0]);
  for (const auto& [rows, act] : {std::pair{2048, DType::kBF16}, {1024, DType::kF32}}) {
    const Copy x = copy(Tensor(act, rows, kHidden)), out = copy(Tensor(DType::kF32, rows, kHidden));
    const Chosen chosen(set(), rows, kExperts, kChoices);
    set().memory().wait();
    const uint64_t before = find_cuda_device()->free_bytes;
    set().experts(x, experts, chosen.device_ids(), chosen.device_weights(), kChoices, out);
    set().memory().wait();
    const uint64_t after = find_cuda_device()->free_bytes;
    constexpr uint64_t kLittle = 16u << 20;  // lists; the driver gives 2 MiB at least
    EXPECT_LE(before - after, cuda_expert_bytes(kHidden, kInner, kExperts) + kLittle) << rows;
  }
}

// Little enough to be run under compute-sanitizer.
TEST_F(GpuLargeProducts, FewTiles) {
  expect_linear(137, 68, 8500);
  expect_heads(5, 48, 32, 1700, DType::kBF16);
  for (const DType act : {DType::kBF16, DType::kF32}) expect_own_products(137, 2, 1, 128, 192, act);
}

}  // namespace
}  // namespace foresail
