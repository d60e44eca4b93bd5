#include "kernel/random_inputs.h"

namespace foresail {
namespace {

class Attention : public KernelTest {};
FORESAIL_FOR_ALL_SETS(Attention);

struct Geometry {
  int heads, latent, rope, nope, value;
};
// models.md §1.4, the small golden models, and sizes that divide nothing.
constexpr Geometry kGeometries[] = {
    {16, 512, 64, 128, 128}, {20, 512, 64, 192, 256}, {40, 256, 32, 64, 64}, {5, 256, 64, 64, 128},
    {4, 64, 8, 16, 16},      {1, 32, 16, 8, 16},      {3, 33, 6, 7, 9}};

constexpr float kScale = 0.1f;

double attention_tolerance(const TestedSet& c) {
  return c.is_bf16() ? 1.5e-2 : 2e-5;
}

TEST_P(Attention, LatentMatchesOracle) {
  PooledSet set(GetParam());
  for (const Geometry& g : kGeometries)
    for (const DType cache_dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
      for (const int page_size : {1, 16, 32, 64}) {
        if (g.heads >= 16 && page_size != 64 && page_size != 1) continue;  // time
        const std::vector<int> lengths = {1, page_size, page_size + 1, 0, 150};
        ScatteredCache cache(cache_dtype, page_size, g.latent, g.rope, lengths);
        // One decode row, whole prompt, two rows, padding, five rows of a long one.
        const std::vector<int> counts = {1, std::min(page_size, 9), 1, 2, 5};
        std::vector<SequenceRows> rows;
        int total = 0;
        for (size_t s = 0; s < lengths.size(); ++s) {
          rows.push_back({total, counts[s], lengths[s], cache.table(s)});
          total += counts[s];
        }
        const Tensor q =
            Tensor(DType::kF32, total, g.heads * (g.latent + g.rope), 2).randomize(3, 0.5f);
        Tensor got = Tensor(act(), total, g.heads * g.latent).fill(7.0f);
        Tensor want = got;
        set->latent_attention(q, g.heads, kScale, rows, cache.view(), got);
        oracle()->latent_attention(q, g.heads, kScale, rows, cache.view(), want);
        expect_close(got, want, attention_tolerance(GetParam()),
                     GetParam().label() + " heads " + std::to_string(g.heads) + " page " +
                         std::to_string(page_size));
      }
}

// A prefill row at position p equals a decode row with kv_end = p + 1, whatever the page size,
// the neighbours and the number of threads.
TEST_P(Attention, LatentRowsEqualDecodeRows) {
  const Geometry geometries[] = {{5, 64, 16, 16, 16}, {16, 128, 32, 16, 16}};
  constexpr int kLength = 700;  // several key splits
  for (const Geometry& g : geometries)
    for (const DType cache_dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
      std::unique_ptr<Tensor> first;
      for (const int page_size : {64, 1, 16}) {
        ScatteredCache cache(cache_dtype, page_size, g.latent, g.rope, {kLength});
        const int width = g.heads * (g.latent + g.rope);
        const Tensor q = Tensor(DType::kF32, kLength, width).randomize(4);
        PooledSet prefill(GetParam(), page_size == 64 ? 1 : 3);
        Tensor all(act(), kLength, g.heads * g.latent);
        const SequenceRows whole[] = {{0, kLength, kLength, cache.table(0)}};
        prefill->latent_attention(q, g.heads, kScale, whole, cache.view(), all);
        if (first == nullptr) {
          first = std::make_unique<Tensor>(all);
        } else {
          for (int p = 0; p < kLength; ++p) expect_same_row(all, p, *first, p, "page size");
        }
        // Keys behind the last visible one become poison, as if never written.
        for (int p : {0, 1, 15, 16, 62, 63, 64, 65, 127, 128, 300, 511, 512, 513, 640, 699}) {
          PooledSet set(GetParam(), 1 + p % 4);
          ScatteredCache cut(cache_dtype, page_size, g.latent, g.rope, {p + 1, 70});
          const int before = p % 3;  // rows of another request in front
          const int count = 1 + p % std::min(p + 1, 4);
          std::vector<int> which;
          for (int i = 0; i < before; ++i) which.push_back(i);
          for (int i = 0; i < count; ++i) which.push_back(p - count + 1 + i);
          std::vector<SequenceRows> rows;
          if (before > 0) rows.push_back({0, before, 70, cut.table(1)});
          rows.push_back({before, count, p + 1, cut.table(0)});
          Tensor out(act(), before + count, g.heads * g.latent);
          set->latent_attention(q.pick(which), g.heads, kScale, rows, cut.view(), out);
          for (int i = 0; i < count; ++i)
            expect_same_row(out, before + i, *first, p - count + 1 + i,
                            GetParam().label() + " decode at " + std::to_string(p));
        }
      }
    }
}

// A key that is no number reaches the rows that see it, and none of those beside them that do not.
TEST_P(Attention, LatentRowsAreSpoiltByKeysTheySee) {
  const Geometry g = {5, 66, 16, 16, 16};
  for (const DType cache_dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
    for (const int known : {1, 2, 31, 63, 64, 65, 513}) {
      SCOPED_TRACE(GetParam().label() + " keys " + std::to_string(known));
      PooledSet set(GetParam());
      const ScatteredCache cache(cache_dtype, 16, g.latent, g.rope, {known});  // NaN behind them
      const Tensor q = Tensor(DType::kF32, 4, g.heads * (g.latent + g.rope)).randomize(5);
      Tensor alone(act(), 1, g.heads * g.latent), all(act(), 4, g.heads * g.latent);
      const SequenceRows one[] = {{0, 1, known, cache.table(0)}};
      const SequenceRows four[] = {{0, 4, known + 3, cache.table(0)}};
      set->latent_attention(q.pick({0}), g.heads, kScale, one, cache.view(), alone);
      set->latent_attention(q, g.heads, kScale, four, cache.view(), all);
      expect_same_row(all, 0, alone, 0, "row before");
      for (int row = 1; row < 4; ++row)
        for (int64_t i = 0; i < all.cols(); ++i) EXPECT_TRUE(std::isnan(all.at(row, i)));
    }
}

struct Expanded {
  Tensor nope, rope, value;
  Expanded(int64_t keys, const Geometry& g)
      : nope(DType::kF32, keys, g.heads * g.nope),
        rope(DType::kF32, keys, g.rope),
        value(DType::kF32, keys, g.heads * g.value) {}
  ExpandedKeys keys(int64_t count, int64_t from = 0) {
    return {nope.f32() + from * nope.cols(), rope.f32() + from * rope.cols(),
            value.f32() + from * value.cols(), count, static_cast<int>(rope.cols())};
  }
};

TEST_P(Attention, ExpandedMatchesOracle) {
  PooledSet set(GetParam());
  for (const Geometry& g : kGeometries)
    for (const auto& [rows, key_count] : {std::pair{1, 1}, {1, 65}, {33, 33}, {70, 131}, {9, 4}})
      for (const bool causal : {true, false}) {
        Expanded keys(key_count, g);
        keys.nope.randomize(1);
        keys.rope.randomize(2);
        keys.value.randomize(3);
        const Tensor q = Tensor(DType::kF32, rows, g.heads * (g.nope + g.rope), 4).randomize(4);
        Tensor got(DType::kF32, rows, g.heads * g.value, 3);
        Tensor lse(DType::kF32, rows, g.heads, 1);
        Tensor want = got;
        Tensor want_lse = lse;
        set->expanded_attention(q, g.heads, kScale, causal, keys.keys(key_count), got, lse);
        oracle()->expanded_attention(q, g.heads, kScale, causal, keys.keys(key_count), want,
                                     want_lse);
        const double tolerance = attention_tolerance(GetParam());
        expect_close(got, want, tolerance, GetParam().label() + " expanded");
        expect_close(lse, want_lse, tolerance, GetParam().label() + " lse");
      }
}

TEST_P(Attention, ExpandedRowsDoNotDependOnTheBatch) {
  const Geometry g = {3, 0, 16, 24, 40};
  constexpr int kKeys = 300;
  Expanded keys(kKeys, g);
  keys.nope.randomize(1);
  keys.rope.randomize(2);
  keys.value.randomize(3);
  const Tensor q = Tensor(DType::kF32, kKeys, g.heads * (g.nope + g.rope)).randomize(4);
  Tensor all(DType::kF32, kKeys, g.heads * g.value);
  Tensor lse(DType::kF32, kKeys, g.heads);
  PooledSet one(GetParam(), 1);
  one->expanded_attention(q, g.heads, kScale, true, keys.keys(kKeys), all, lse);
  for (const int last : {0, 1, 63, 64, 65, 130, 299})
    for (const int count : {1, 2, 5, 17}) {
      if (count > last + 1) continue;
      PooledSet set(GetParam(), 1 + count % 4);
      std::vector<int> which;
      for (int i = 0; i < count; ++i) which.push_back(last - count + 1 + i);
      Tensor out(DType::kF32, count, g.heads * g.value);
      Tensor out_lse(DType::kF32, count, g.heads);
      set->expanded_attention(q.pick(which), g.heads, kScale, true, keys.keys(last + 1), out,
                              out_lse);
      for (int i = 0; i < count; ++i) {
        expect_same_row(out, i, all, which[static_cast<size_t>(i)], GetParam().label());
        expect_same_row(out_lse, i, lse, which[static_cast<size_t>(i)], GetParam().label());
      }
    }
}

TEST_P(Attention, MergeEqualsOnePass) {
  PooledSet set(GetParam());
  const Geometry g = {3, 0, 16, 24, 40};
  Expanded keys(200, g);
  keys.nope.randomize(1);
  keys.rope.randomize(2);
  keys.value.randomize(3);
  const Tensor q = Tensor(DType::kF32, 50, g.heads * (g.nope + g.rope)).randomize(4);
  const auto make = [&](int64_t cols) { return Tensor(DType::kF32, 50, cols); };
  Tensor whole = make(g.heads * g.value), whole_lse = make(g.heads);
  set->expanded_attention(q, g.heads, kScale, true, keys.keys(200), whole, whole_lse);
  Tensor out = make(g.heads * g.value), lse = make(g.heads);
  Tensor prefix = out, prefix_lse = lse;
  set->expanded_attention(q, g.heads, kScale, true, keys.keys(50, 150), out, lse);
  set->expanded_attention(q, g.heads, kScale, false, keys.keys(150), prefix, prefix_lse);
  Tensor ref_out = out, ref_lse = lse;
  set->merge_attention(prefix, prefix_lse, out, lse);
  oracle()->merge_attention(prefix, prefix_lse, ref_out, ref_lse);
  expect_close(out, ref_out, 1e-5, "merge");
  expect_close(out, whole, attention_tolerance(GetParam()), "merge against one pass");
  expect_close(lse, whole_lse, attention_tolerance(GetParam()), "lse");

  // Empty sides: exact, whatever the empty side's numbers are.
  Tensor empty = Tensor(DType::kF32, 50, g.heads * g.value).fill(std::nanf(""));
  Tensor empty_lse = Tensor(DType::kF32, 50, g.heads).fill(-std::numeric_limits<float>::infinity());
  Tensor kept = out, kept_lse = lse;
  set->merge_attention(empty, empty_lse, kept, kept_lse);
  set->merge_attention(out, lse, empty, empty_lse);
  for (int64_t r = 0; r < 50; ++r) {
    expect_same_row(kept, r, out, r, "empty other");
    expect_same_row(empty, r, out, r, "empty self");
    expect_same_row(empty_lse, r, lse, r, "empty self lse");
  }
}

TEST_P(Attention, HeadProjectionsMatchOracle) {
  PooledSet set(GetParam());
  const auto ref = oracle();
  for (const Geometry& g : kGeometries) {
    std::vector<MatrixPtr> uk_t, uk, uv, ref_uk_t, ref_uk, ref_uv;
    for (int h = 0; h < g.heads; ++h) {
      const uint64_t seed = static_cast<uint64_t>(h) + 1;
      const Tensor k = Tensor(DType::kBF16, g.nope, g.latent).randomize(seed, 0.1f);
      const Tensor v = Tensor(DType::kBF16, g.value, g.latent).randomize(seed + 100, 0.1f);
      for (auto [list, to] : {std::pair{&uk_t, &*set}, {&ref_uk_t, ref.get()}})
        list->push_back(to->pack(k.as_weight(true)));
      for (auto [list, to] : {std::pair{&uk, &*set}, {&ref_uk, ref.get()}})
        list->push_back(to->pack(k.as_weight()));
      for (auto [list, to] : {std::pair{&uv, &*set}, {&ref_uv, ref.get()}})
        list->push_back(to->pack(v.as_weight()));
    }
    const int rows = 11;
    const double tolerance = is_bf16() ? 5e-3 : 5e-6;
    const Tensor q = Tensor(DType::kF32, rows, g.heads * (g.nope + g.rope), 1).randomize(1);
    Tensor absorbed(DType::kF32, rows, g.heads * (g.latent + g.rope), 2);
    Tensor want = absorbed;
    set->absorb_query(q, uk_t, g.nope, g.rope, absorbed);
    ref->absorb_query(q, ref_uk_t, g.nope, g.rope, want);
    expect_close(absorbed, want, tolerance, GetParam().label() + " absorb");
    for (int i = 0; i < rows; ++i) {
      Tensor alone(DType::kF32, 1, absorbed.cols());
      set->absorb_query(q.pick({i}), uk_t, g.nope, g.rope, alone);
      expect_same_row(alone, 0, absorbed, i, "absorb alone");
    }

    const Tensor latent = Tensor(act(), rows, g.heads * g.latent, 1).randomize(2);
    Tensor up(act(), rows, g.heads * g.value, 2);
    Tensor want_up = up;
    set->value_up(latent, uv, up);
    ref->value_up(latent, ref_uv, want_up);
    expect_close(up, want_up, tolerance, GetParam().label() + " value_up");

    // The small geometries also with more keys than are packed at a time.
    const int key_count = g.latent < 100 ? 300 : rows;
    for (const DType cache_dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
      ScatteredCache cache(cache_dtype, 16, g.latent, g.rope, {34 + key_count});
      const SequenceRows sequence = {0, 1, 34 + key_count, cache.table(0)};
      Expanded got(key_count, g), expected(key_count, g);
      set->expand_latent(sequence, 30, cache.view(), uk, uv, got.nope, got.rope, got.value);
      ref->expand_latent(sequence, 30, cache.view(), ref_uk, ref_uv, expected.nope, expected.rope,
                         expected.value);
      expect_close(got.nope, expected.nope, tolerance, GetParam().label() + " k_nope");
      expect_close(got.rope, expected.rope, 1e-7, GetParam().label() + " k_rope");
      expect_close(got.value, expected.value, tolerance, GetParam().label() + " value");
    }
  }
}

}  // namespace
}  // namespace foresail
