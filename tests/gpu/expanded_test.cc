// Expanded attention of the CUDA set beside the oracle.
#include <fmt/core.h>

#include "gpu_fixture.h"
#include "kernel/random_inputs.h"

namespace foresail {
namespace {

constexpr float kScale = 0.2f;

struct Geometry {
  int heads, rope, nope, value;
};
// Small and odd ones, those of the families.
constexpr Geometry kGeometries[] = {
    {3, 16, 24, 40}, {2, 5, 7, 9}, {4, 64, 128, 128}, {2, 64, 192, 256}, {2, 32, 64, 64}};

struct Keys {
  Tensor nope, rope, value;
  Keys(int64_t count, const Geometry& g)
      : nope(DType::kF32, count, g.heads * g.nope),
        rope(DType::kF32, count, g.rope),
        value(DType::kF32, count, g.heads * g.value) {
    nope.randomize(1);
    rope.randomize(2);
    value.randomize(3);
  }
};

class GpuExpanded : public GpuTest {
 protected:
  // gap: between rows of the result; where it is odd, the tiled kernel does not run.
  void expect_attended(const Geometry& g, int rows, int key_count, int gap = 3) {
    for (const bool causal : {true, false})
      for (const bool exact : {true, false}) {
        Keys keys(key_count, g);
        const Copy nope = copy(keys.nope), rope = copy(keys.rope), value = copy(keys.value);
        const Tensor q = Tensor(DType::kF32, rows, g.heads * (g.nope + g.rope), 4).randomize(4);
        Tensor got(DType::kF32, rows, g.heads * g.value, gap), lse(DType::kF32, rows, g.heads, 1);
        Tensor want = got, want_lse = lse;
        const Copy q_copy = copy(q), out = copy(got), out_lse = copy(lse);
        set().expanded_attention(q_copy, g.heads, kScale, causal,
                                 {nope.f32(), rope.f32(), value.f32(), key_count, g.rope, exact},
                                 out, out_lse);
        ref().expanded_attention(
            q, g.heads, kScale, causal,
            {keys.nope.f32(), keys.rope.f32(), keys.value.f32(), key_count, g.rope}, want,
            want_lse);
        const double tolerance = exact ? 1e-4 : 1.5e-2;
        const std::string label = fmt::format("nope {} value {} rows {} keys {} causal {} exact {}",
                                              g.nope, g.value, rows, key_count, causal, exact);
        expect_close(out.read(got), want, tolerance, label);
        expect_close(out_lse.read(lse), want_lse, tolerance, label + " lse");
      }
  }
};

TEST_F(GpuExpanded, AttentionMatchesOracle) {
  for (const Geometry& g : kGeometries)
    for (const auto& [rows, key_count] :
         {std::pair{1, 1}, {1, 65}, {33, 33}, {70, 131}, {9, 4}, {200, 200}, {130, 400}})
      expect_attended(g, rows, key_count);
}

// Little enough to be run under compute-sanitizer: each kernel.
TEST_F(GpuExpanded, FewKeys) {
  expect_attended({1, 6, 6, 20}, 5, 37);
  expect_attended({1, 16, 24, 100}, 20, 33);
  expect_attended({2, 5, 7, 140}, 3, 70);
}

// The shape of heads that Hopper's tiled kernel is for: around the borders of its tiles of 64 rows
// and 128 keys, blocks with one and with two tiles of rows, rows that see nothing.
TEST_F(GpuExpanded, TilesMatchOracle) {
  for (const auto& [heads, rows, key_count] : {std::tuple{1, 1, 1},
                                               {3, 1, 129},
                                               {1, 63, 64},
                                               {2, 64, 127},
                                               {2, 65, 128},
                                               {1, 127, 129},
                                               {2, 128, 128},
                                               {1, 129, 257},
                                               {2, 200, 100},
                                               {1, 260, 384},
                                               {2, 330, 511},
                                               {1, 256, 1000},
                                               {16, 257, 257},
                                               {17, 130, 140},
                                               {128, 65, 130}})
    expect_attended({heads, 64, 128, 128}, rows, key_count, 2);
}

// Little enough for compute-sanitizer: both warpgroups of a block, two tiles of keys.
TEST_F(GpuExpanded, FewTiles) {
  expect_attended({2, 64, 128, 128}, 3, 5, 0);
  expect_attended({1, 64, 128, 128}, 70, 140, 0);
}

// Whatever rows are beside it and however its call is cut.
class GpuExpandedRows : public GpuExpanded, public testing::WithParamInterface<Geometry> {};
INSTANTIATE_TEST_SUITE_P(Heads, GpuExpandedRows,
                         testing::Values(Geometry{2, 16, 24, 40}, Geometry{2, 64, 128, 128}),
                         [](const auto& test) { return fmt::format("of{}", test.param.nope); });

TEST_P(GpuExpandedRows, DoNotDependOnTheBatch) {
  const Geometry g = GetParam();
  constexpr int kKeys = 300;
  Keys keys(kKeys, g);
  const Copy nope = copy(keys.nope), rope = copy(keys.rope), value = copy(keys.value);
  const Tensor q = Tensor(DType::kF32, kKeys, g.heads * (g.nope + g.rope)).randomize(4);
  const auto attend = [&](const Tensor& rows, int key_count, Tensor& result, Tensor& lse) {
    const Copy q_copy = copy(rows), out = copy(result), out_lse = copy(lse);
    set().expanded_attention(q_copy, g.heads, kScale, true,
                             {nope.f32(), rope.f32(), value.f32(), key_count, g.rope}, out,
                             out_lse);
    out.read(result);
    out_lse.read(lse);
  };
  Tensor all(DType::kF32, kKeys, g.heads * g.value), all_lse(DType::kF32, kKeys, g.heads);
  attend(q, kKeys, all, all_lse);
  for (const int last : {0, 1, 63, 64, 65, 127, 128, 130, 256, 299})
    for (const int count : {1, 2, 17, 64, 129}) {
      if (count > last + 1) continue;
      std::vector<int> which;
      for (int i = 0; i < count; ++i) which.push_back(last - count + 1 + i);
      Tensor out(DType::kF32, count, g.heads * g.value), lse(DType::kF32, count, g.heads);
      attend(q.pick(which), last + 1, out, lse);
      for (int i = 0; i < count; ++i) {
        expect_same_row(out, i, all, which[static_cast<size_t>(i)], fmt::format("last {}", last));
        expect_same_row(lse, i, all_lse, which[static_cast<size_t>(i)], "lse");
      }
    }
}

TEST_P(GpuExpandedRows, PartsMergeToTheWhole) {
  const Geometry g = GetParam();
  const bool exact = g.nope != 128;  // the tiled kernel is for numbers of one term
  const double tolerance = exact ? 1e-5 : 1.5e-2;
  Keys keys(200, g);
  const Copy nope = copy(keys.nope), rope = copy(keys.rope), value = copy(keys.value);
  const Tensor q = Tensor(DType::kF32, 50, g.heads * (g.nope + g.rope)).randomize(4);
  const Copy q_copy = copy(q);
  Tensor blank(DType::kF32, 50, g.heads * g.value), blank_lse(DType::kF32, 50, g.heads);
  const auto attend = [&](int64_t from, int64_t count, bool causal, const Copy& out,
                          const Copy& lse) {
    set().expanded_attention(
        q_copy, g.heads, kScale, causal,
        {nope.f32() + from * keys.nope.cols(), rope.f32() + from * keys.rope.cols(),
         value.f32() + from * keys.value.cols(), count, g.rope, exact},
        out, lse);
  };
  const Copy whole = copy(blank), whole_lse = copy(blank_lse), out = copy(blank),
             lse = copy(blank_lse), part = copy(blank), part_lse = copy(blank_lse);
  attend(0, 200, true, whole, whole_lse);
  attend(150, 50, true, out, lse);
  attend(0, 150, false, part, part_lse);
  set().merge_attention(part, part_lse, out, lse);
  Tensor want = blank, want_lse = blank_lse, got = blank, got_lse = blank_lse;
  expect_close(out.read(got), whole.read(want), tolerance, "merged");
  expect_close(lse.read(got_lse), whole_lse.read(want_lse), tolerance, "merged lse");

  // A part without keys changes nothing, on either side.
  Tensor empty = Tensor(DType::kF32, 50, g.heads * g.value).fill(0.0f);
  Tensor empty_lse = Tensor(DType::kF32, 50, g.heads).fill(-std::numeric_limits<float>::infinity());
  const Copy none = copy(empty), none_lse = copy(empty_lse);
  set().merge_attention(none, none_lse, out, lse);
  Tensor after = blank, after_lse = blank_lse;
  out.read(after);
  lse.read(after_lse);
  set().merge_attention(out, lse, none, none_lse);
  for (int row = 0; row < 50; ++row) {
    expect_same_row(after, row, got, row, "empty other");
    expect_same_row(after_lse, row, got_lse, row, "empty other lse");
    expect_same_row(none.read(empty), row, got, row, "empty base");
    expect_same_row(none_lse.read(empty_lse), row, got_lse, row, "empty base lse");
  }
}

// What lies behind the last key and the last query is read by nobody, and nothing is written there.
TEST_P(GpuExpandedRows, EndWhereTheyEnd) {
  const Geometry g = GetParam();
  constexpr int kMost = 300;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [rows, key_count] :
       {std::pair{1, 1}, {1, 130}, {63, 63}, {64, 128}, {65, 129}, {129, 255}}) {
    Keys clean(kMost, g), poisoned(kMost, g);
    Tensor q = Tensor(DType::kF32, kMost, g.heads * (g.nope + g.rope)).randomize(4);
    Tensor poisoned_q = q;
    const auto poison = [&](Tensor& tensor, int from) {
      for (int64_t row = from; row < kMost; ++row)
        for (int64_t i = 0; i < tensor.cols(); ++i) tensor.set(row, i, nan);
    };
    poison(poisoned.nope, key_count);
    poison(poisoned.rope, key_count);
    poison(poisoned.value, key_count);
    poison(poisoned_q, rows);
    const auto attend = [&](const Tensor& queries, const Keys& keys, Tensor& out, Tensor& lse) {
      const Copy q_copy = copy(queries), nope = copy(keys.nope), rope = copy(keys.rope),
                 value = copy(keys.value), device_out = copy(out), device_lse = copy(lse);
      const auto first_rows = [&](const Copy& all) {
        MatrixView view = all;
        view.rows = rows;
        return view;
      };
      set().expanded_attention(first_rows(q_copy), g.heads, kScale, true,
                               {nope.f32(), rope.f32(), value.f32(), key_count, g.rope},
                               first_rows(device_out), first_rows(device_lse));
      device_out.read(out);
      device_lse.read(lse);
    };
    Tensor want = Tensor(DType::kF32, kMost, g.heads * g.value).fill(7.0f);
    Tensor want_lse = Tensor(DType::kF32, kMost, g.heads).fill(7.0f);
    Tensor got = want, got_lse = want_lse;
    attend(q, clean, want, want_lse);
    attend(poisoned_q, poisoned, got, got_lse);
    const std::string label = fmt::format("rows {} keys {}", rows, key_count);
    for (int row = 0; row < kMost; ++row) {
      expect_same_row(got, row, want, row, label);
      expect_same_row(got_lse, row, want_lse, row, label + " lse");
      EXPECT_EQ(got.at(row, 0) == 7.0f, row >= rows) << label << " row " << row;
    }
  }
}

TEST_F(GpuExpanded, KeysAndValuesMatchOracle) {
  constexpr int kLatent = 64, kFirst = 30, kKeys = 300;
  const Geometry g = {3, 16, 24, 40};
  std::vector<MatrixPtr> uk, uv, ref_uk, ref_uv;
  for (int h = 0; h < g.heads; ++h) {
    const Tensor k = Tensor(DType::kBF16, g.nope, kLatent).randomize(10 + h, 0.1f);
    const Tensor v = Tensor(DType::kBF16, g.value, kLatent).randomize(20 + h, 0.1f);
    uk.push_back(set().pack(k.as_weight()));
    uv.push_back(set().pack(v.as_weight()));
    ref_uk.push_back(ref().pack(k.as_weight()));
    ref_uv.push_back(ref().pack(v.as_weight()));
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
    for (const int page_size : {1, 16, 64}) {
      const std::vector<int> lengths = {7, kFirst + kKeys};
      const ScatteredCache cache(dtype, page_size, kLatent, g.rope, lengths);
      const Copy storage = copy(cache.storage());
      LatentCache device = cache.view();
      device.data = storage.view().data;
      const std::vector<SequenceRows> rows = {{0, 1, 7, cache.table(0)},
                                              {1, 1, kFirst + kKeys, cache.table(1)}};
      const std::vector<int32_t> positions = {6, kFirst + kKeys - 1};
      begin({.positions = positions, .sequences = rows, .page_size = page_size});
      Keys got(kKeys, g), want(kKeys, g);
      const Copy nope = copy(got.nope), rope = copy(got.rope), value = copy(got.value);
      set().expand_latent(rows[1], kFirst, device, uk, uv, nope, rope, value);
      ref().expand_latent(rows[1], kFirst, cache.view(), ref_uk, ref_uv, want.nope, want.rope,
                          want.value);
      const std::string label = fmt::format("{} page {}", dtype_name(dtype), page_size);
      expect_close(nope.read(got.nope), want.nope, 1e-4, label + " k_nope");
      expect_close(rope.read(got.rope), want.rope, 1e-7, label + " k_rope");
      expect_close(value.read(got.value), want.value, 1e-4, label + " value");
    }
}

// A key that is no number, as the set stores it, reaches the rows that see it, and none of those
// beside them that do not.
TEST_P(GpuExpandedRows, AreSpoiltByKeysTheySee) {
  constexpr int kLatent = 64, kRows = 4;
  const Geometry g = GetParam();
  std::vector<MatrixPtr> uk, uv;
  for (int h = 0; h < g.heads; ++h) {
    uk.push_back(
        set().pack(Tensor(DType::kBF16, g.nope, kLatent).randomize(10 + h, 0.1f).as_weight()));
    uv.push_back(
        set().pack(Tensor(DType::kBF16, g.value, kLatent).randomize(20 + h, 0.1f).as_weight()));
  }
  const Copy turns = copy(Tensor(DType::kF32, kRows, g.rope / 2).randomize(9));
  const Copy ones = copy(Tensor(DType::kF32, 1, kLatent).fill(1.0f));
  Tensor kv = Tensor(DType::kF32, kRows - 1, kLatent + g.rope).randomize(8);
  for (int i = 0; i < kRows - 1; ++i) kv.set(i, 3 * i, std::numeric_limits<float>::quiet_NaN());
  const Copy device_kv = copy(kv);
  const Tensor q = Tensor(DType::kF32, kRows, g.heads * (g.nope + g.rope)).randomize(4);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
    for (const int known : {1, 2, 31, 63, 64, 65, 126, 300})
      for (const bool exact : {true, false}) {
        const int key_count = known + kRows - 1;
        const std::string label =
            fmt::format("{} keys {} exact {}", dtype_name(dtype), known, exact);
        const ScatteredCache cache(dtype, 16, kLatent, g.rope, {known});
        const Copy storage = copy(cache.storage());
        LatentCache device = cache.view();
        device.data = storage.view().data;
        std::vector<int32_t> positions, slots;
        for (int i = 0; i < kRows - 1; ++i) {
          positions.push_back(i);
          slots.push_back(static_cast<int32_t>(cache.slot(0, known + i)));
        }
        const std::vector<SequenceRows> rows = {{0, kRows, key_count, cache.table(0)}};
        begin({.positions = positions, .slots = slots, .sequences = rows, .page_size = 16});
        set().store_latent(device_kv, ones.f32(), 1e-6f,
                           {turns.f32(), turns.f32(), g.rope, RopeLayout::kAdjacentPairs},
                           positions, slots, device);
        const Keys keys(key_count, g);
        const Copy nope = copy(keys.nope), rope = copy(keys.rope), value = copy(keys.value);
        set().expand_latent(rows[0], 0, device, uk, uv, nope, rope, value);
        const auto attend = [&](const Tensor& queries, int count, Tensor& out, Tensor& lse) {
          const Copy q_copy = copy(queries), device_out = copy(out), device_lse = copy(lse);
          set().expanded_attention(q_copy, g.heads, kScale, true,
                                   {nope.f32(), rope.f32(), value.f32(), count, g.rope, exact},
                                   device_out, device_lse);
          device_out.read(out);
          device_lse.read(lse);
        };
        Tensor alone(DType::kF32, 1, g.heads * g.value), alone_lse(DType::kF32, 1, g.heads);
        Tensor all(DType::kF32, kRows, g.heads * g.value), all_lse(DType::kF32, kRows, g.heads);
        attend(q.pick({0}), known, alone, alone_lse);
        attend(q, key_count, all, all_lse);
        expect_same_row(all, 0, alone, 0, label);
        expect_same_row(all_lse, 0, alone_lse, 0, label + " lse");
        int64_t numbers = 0;
        for (int row = 1; row < kRows; ++row)
          for (int64_t i = 0; i < all.cols(); ++i) numbers += !std::isnan(all.at(row, i));
        EXPECT_EQ(numbers, 0) << label;
      }
}

}  // namespace
}  // namespace foresail
