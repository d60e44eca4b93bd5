// A cache of 8-bit codes: one scale, the same when a row is written and in every way it is read.
#include <algorithm>

#include "base/checked_math.h"
#include "kernel/random_inputs.h"

namespace foresail {
namespace {

class ScaledCache : public KernelTest {};
FORESAIL_FOR_ALL_SETS(ScaledCache);

constexpr int kNope = 16;
constexpr int kValue = 16;
constexpr int kPageSize = 16;
constexpr float kScore = 0.15f;

const float* data_of(const Tensor& t) {
  return static_cast<const float*>(t.view().data);
}

// Pages 1, 2, ... of one request, written through the set.
struct Cache {
  Cache(KernelSet& set, DType dtype, float scale, const Tensor& kv, const Tensor& norm)
      : length(static_cast<int32_t>(kv.rows())),
        rows(dtype, round_up<int64_t>(length, kPageSize) + kPageSize, kSmallLatent + kSmallRope),
        view{rows.view().data, dtype, kPageSize, kSmallLatent, kSmallRope, scale} {
    const Tensor cos = Tensor(DType::kF32, length, kSmallRope / 2).fill(1.0f);
    const Tensor sin = Tensor(DType::kF32, length, kSmallRope / 2).fill(0.0f);
    std::vector<int32_t> slots, positions;
    for (int32_t key = 0; key < length; ++key) {
      positions.push_back(key);
      slots.push_back(kPageSize + key);
      if (key % kPageSize == 0) table.push_back(1 + key / kPageSize);
    }
    set.store_latent(kv, data_of(norm), 0.0f,
                     {data_of(cos), data_of(sin), kSmallRope, RopeLayout::kAdjacentPairs},
                     positions, slots, view);
  }
  // The last `count` rows of the request, as decoding (1), verifying (a few) or prefilling do.
  Tensor absorbed(KernelSet& set, const Tensor& q, int32_t count, DType act) const {
    Tensor out(act, count, kSmallHeads * kSmallLatent);
    const SequenceRows batch[] = {{0, count, length, table.data()}};
    set.latent_attention(q, kSmallHeads, kScore, batch, view, out);
    return out;
  }

  int32_t length;
  Tensor rows;
  LatentCache view;
  std::vector<int32_t> table;
};

// K14. Reading without the scale would give half of it, writing without it 448 for the last.
TEST_P(ScaledCache, CodesAreTheNumbersOverTheScale) {
  PooledSet set(GetParam());
  const auto stored = [&](float even, float odd) {
    // Even and odd columns of one row; the norm's mean square is one.
    Tensor kv = Tensor(DType::kF32, 1, kSmallLatent + kSmallRope).fill(0.0f);
    Tensor norm(DType::kF32, 1, kSmallLatent);
    for (int i = 0; i < kSmallLatent; ++i) {
      kv.set(0, i, i % 2 == 0 ? 1.0f : -1.0f);
      norm.set(0, i, i % 2 == 0 ? even : -odd);
    }
    const Cache cache(*set, DType::kF8E4M3, 2.0f, kv, norm);
    const auto* codes =
        static_cast<const uint8_t*>(cache.view.data) + kPageSize * (kSmallLatent + kSmallRope);
    const Tensor q = Tensor(DType::kF32, 1, kSmallHeads * (kSmallLatent + kSmallRope)).randomize(1);
    const Tensor out = cache.absorbed(*set, q, 1, act());
    return std::tuple(codes[0], codes[1], out.at(0, 0), out.at(0, 1),
                      out.at(0, 3 * kSmallLatent + 1));
  };
  // 48 = 1.5 * 2^5 and -96 = -1.5 * 2^6; 600 / 2 = 300 lies nearest to 288 = 1.125 * 2^8.
  EXPECT_EQ(stored(96.0f, -192.0f), std::tuple(0x64, 0xEC, 96.0f, -192.0f, -192.0f));
  EXPECT_EQ(stored(600.0f, 1.0f), std::tuple(0x79, 0x30, 576.0f, 1.0f, 1.0f));
}

void expect_near(const Tensor& got, const Tensor& want, const std::string& what) {
  double largest = 0.0;
  for (int64_t r = 0; r < want.rows(); ++r)
    for (int64_t c = 0; c < want.cols(); ++c)
      largest = std::max(largest, std::abs(double{want.at(r, c)}));
  for (int64_t r = 0; r < want.rows(); ++r)
    for (int64_t c = 0; c < want.cols(); ++c)
      ASSERT_NEAR(got.at(r, c), want.at(r, c), 6e-2 * largest) << what;
}

// K14, T6: every form of attention over the codes is near that over bf16 rows, whatever the scale.
TEST_P(ScaledCache, EveryFormReadsTheSameScale) {
  PooledSet set(GetParam());
  constexpr int32_t kLength = 150;
  const Tensor kv = Tensor(DType::kF32, kLength, kSmallLatent + kSmallRope).randomize(2);
  const Tensor norm = Tensor(DType::kF32, 1, kSmallLatent).randomize(3, 0.2f, 1.0f);
  const Cache exact(*set, DType::kBF16, 1.0f, kv, norm);
  std::vector<MatrixPtr> uk, uv;
  for (uint64_t head = 1; head <= kSmallHeads; ++head) {
    uk.push_back(set->pack(
        Tensor(DType::kBF16, kNope, kSmallLatent).randomize(10 + head, 0.2f).as_weight()));
    uv.push_back(set->pack(
        Tensor(DType::kBF16, kValue, kSmallLatent).randomize(20 + head, 0.2f).as_weight()));
  }
  const auto expanded = [&](const Cache& cache, int64_t begin, int64_t end) {
    const int64_t keys = end - begin;
    Tensor nope(DType::kF32, keys, kSmallHeads * kNope), rope(DType::kF32, keys, kSmallRope);
    Tensor value(DType::kF32, keys, kSmallHeads * kValue);
    set->expand_latent({0, 1, kLength, cache.table.data()}, begin, cache.view, uk, uv, nope, rope,
                       value);
    const Tensor q = Tensor(DType::kF32, 5, kSmallHeads * (kNope + kSmallRope)).randomize(4);
    Tensor out(DType::kF32, 5, kSmallHeads * kValue), lse(DType::kF32, 5, kSmallHeads);
    set->expanded_attention(q, kSmallHeads, kScore, false,
                            {nope.f32(), rope.f32(), value.f32(), keys, kSmallRope}, out, lse);
    return std::pair(std::move(out), std::move(lse));
  };
  for (const float scale : {0.25f, 1.0f, 4.0f}) {
    const Cache coded(*set, DType::kF8E4M3, scale, kv, norm);
    for (const int32_t count : {1, 4, 33, 150}) {
      const Tensor q = Tensor(DType::kF32, count, kSmallHeads * (kSmallLatent + kSmallRope))
                           .randomize(count, 0.5f);
      expect_near(coded.absorbed(*set, q, count, act()), exact.absorbed(*set, q, count, act()),
                  GetParam().label() + " rows " + std::to_string(count));
    }
    // A cached prefix in two parts, merged.
    auto [out, lse] = expanded(coded, 64, kLength);
    const auto [first, first_lse] = expanded(coded, 0, 64);
    set->merge_attention(first, first_lse, out, lse);
    const auto [want, want_lse] = expanded(exact, 0, kLength);
    expect_near(out, want, GetParam().label() + " expanded");
    for (int row = 0; row < 5; ++row)
      for (int head = 0; head < kSmallHeads; ++head)
        ASSERT_NEAR(lse.at(row, head), want_lse.at(row, head), 6e-2);
  }
}

}  // namespace
}  // namespace foresail
