// Log-sum-exp is natural everywhere: known values through every set, and long prefixes in chunks
// against one pass in float64. A wrong base, a lost chunk or a wrong order of merging all show.
#include "kernel_fixture.h"

namespace foresail {
namespace {

class AttentionMerge : public KernelTest {};
FORESAIL_FOR_ALL_SETS(AttentionMerge);

struct Part {
  Tensor out = Tensor(DType::kF32, 1, 1);
  Tensor lse = Tensor(DType::kF32, 1, 1);
};

// One head, one query: `count` keys of the same score and value.
Part attend(KernelSet& set, int count, float score, float value) {
  Tensor q = Tensor(DType::kF32, 1, 4).fill(0.0f);  // two columns unrotated, two rotated
  q.set(0, 0, 1.0f);
  Tensor k_nope = Tensor(DType::kF32, count, 2).fill(0.0f);
  const Tensor k_rope = Tensor(DType::kF32, count, 2).fill(0.0f);
  const Tensor values = Tensor(DType::kF32, count, 1).fill(value);
  for (int i = 0; i < count; ++i) k_nope.set(i, 0, score);
  const auto data = [](const Tensor& t) { return static_cast<const float*>(t.view().data); };
  Part part;
  set.expanded_attention(q, 1, 1.0f, false, {data(k_nope), data(k_rope), data(values), count, 2},
                         part.out, part.lse);
  return part;
}

// K1. Merging base-2 sums with natural exponentials gives 0.979874 and 0.998700 instead.
TEST_P(AttentionMerge, KnownValues) {
  PooledSet set(GetParam());
  Part a = attend(*set, 2, 2.0f, 1.0f);
  const Part b = attend(*set, 1, 0.0f, 0.0f);
  EXPECT_NEAR(a.lse.at(0, 0), 2.0 + std::log(2.0), 1e-5);
  EXPECT_NEAR(b.lse.at(0, 0), 0.0, 1e-6);
  set->merge_attention(b.out, b.lse, a.out, a.lse);
  EXPECT_NEAR(a.out.at(0, 0), 0.936621, 2e-6);
  EXPECT_NEAR(a.lse.at(0, 0), 2.758624, 2e-6);

  Part many = attend(*set, 1000, 0.0f, 1.0f);
  const Part few = attend(*set, 10, 0.0f, 0.0f);
  set->merge_attention(few.out, few.lse, many.out, many.lse);
  EXPECT_NEAR(many.out.at(0, 0), 0.990099, 2e-6);
  EXPECT_NEAR(many.lse.at(0, 0), std::log(1010.0), 1e-5);
}

// Queries and keys of one request, and attention over any range of keys.
struct Prompt {
  Prompt(int head_count, int nope_dim, int rope_dim, int value_dim, int64_t keys, int64_t rows)
      : heads(head_count),
        q(DType::kF32, rows, head_count * (nope_dim + rope_dim)),
        k_nope(DType::kF32, keys, head_count * nope_dim),
        k_rope(DType::kF32, keys, rope_dim),
        values(DType::kF32, keys, head_count * value_dim) {
    q.randomize(1);
    k_nope.randomize(2);
    k_rope.randomize(3);
    values.randomize(4);
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(q.cols() / heads)); }
  void attend(KernelSet& set, int64_t begin, int64_t end, bool causal, Tensor& out, Tensor& lse) {
    set.expanded_attention(
        q, heads, scale(), causal,
        {k_nope.f32() + begin * k_nope.cols(), k_rope.f32() + begin * k_rope.cols(),
         values.f32() + begin * values.cols(), end - begin, static_cast<int>(k_rope.cols())},
        out, lse);
  }
  // The own rows first, then the prefix in chunks, as a layer does.
  void attend_in_chunks(KernelSet& set, int64_t chunk, Tensor& out, Tensor& lse) {
    const int64_t prefix = k_nope.rows() - q.rows();
    attend(set, prefix, k_nope.rows(), true, out, lse);
    Tensor part = out, part_lse = lse;
    for (int64_t begin = 0; begin < prefix; begin += chunk) {
      attend(set, begin, std::min(prefix, begin + chunk), false, part, part_lse);
      set.merge_attention(part, part_lse, out, lse);
    }
  }
  // In float64, all keys at once.
  void attend_plainly(Tensor& out, Tensor& lse) const {
    const int64_t nope = k_nope.cols() / heads, rope = k_rope.cols(), width = nope + rope;
    const int64_t value = values.cols() / heads;
    for (int64_t row = 0; row < q.rows(); ++row) {
      const int64_t visible = k_nope.rows() - q.rows() + 1 + row;
      for (int64_t head = 0; head < heads; ++head) {
        std::vector<double> scores(visible);
        double largest = -1e300;
        for (int64_t key = 0; key < visible; ++key) {
          double score = 0.0;
          for (int64_t i = 0; i < nope; ++i)
            score += double{q.at(row, head * width + i)} * k_nope.at(key, head * nope + i);
          for (int64_t i = 0; i < rope; ++i)
            score += double{q.at(row, head * width + nope + i)} * k_rope.at(key, i);
          scores[key] = score * scale();
          largest = std::max(largest, scores[key]);
        }
        double total = 0.0;
        std::vector<double> sum(value);
        for (int64_t key = 0; key < visible; ++key) {
          const double weight = std::exp(scores[key] - largest);
          total += weight;
          for (int64_t i = 0; i < value; ++i) sum[i] += weight * values.at(key, head * value + i);
        }
        for (int64_t i = 0; i < value; ++i)
          out.set(row, head * value + i, static_cast<float>(sum[i] / total));
        lse.set(row, head, static_cast<float>(largest + std::log(total)));
      }
    }
  }

  int heads;
  Tensor q, k_nope, k_rope, values;
};

// K1, T22. The bound of the long ones is 1 % of what an average of that many values leaves.
TEST_P(AttentionMerge, ChunkedPrefixEqualsOnePassInFloat64) {
  struct Case {
    int heads, nope, rope, value;
    int64_t prefix, rows, chunk;
  };
  for (const Case& c : {Case{16, 128, 64, 128, 257, 33, 64}, Case{2, 16, 8, 16, 3072, 64, 4096},
                        Case{2, 16, 8, 16, 3072, 64, 1024}, Case{1, 16, 8, 16, 81920, 16, 27307},
                        Case{1, 16, 8, 16, 81920, 16, 4096}, Case{3, 7, 6, 9, 5, 3, 1}}) {
    PooledSet set(GetParam());
    Prompt prompt(c.heads, c.nope, c.rope, c.value, c.prefix + c.rows, c.rows);
    Tensor out(DType::kF32, c.rows, c.heads * c.value), lse(DType::kF32, c.rows, c.heads);
    Tensor want = out, want_lse = lse;
    prompt.attend_plainly(want, want_lse);
    prompt.attend_in_chunks(*set, c.chunk, out, lse);
    const std::string what = GetParam().label() + " prefix " + std::to_string(c.prefix);
    expect_close(out, want, is_bf16() ? 1e-2 : 1e-4, what);
    for (int64_t row = 0; row < c.rows; ++row)
      for (int64_t head = 0; head < c.heads; ++head)
        ASSERT_NEAR(lse.at(row, head), want_lse.at(row, head), is_bf16() ? 1e-2 : 1e-4) << what;
  }
}

// T8: rows of the same pass with and without a prefix, or with an empty one among its chunks.
TEST_P(AttentionMerge, APartWithoutKeysChangesNothing) {
  PooledSet set(GetParam());
  Prompt prompt(3, 16, 8, 16, 40, 8);
  Tensor out(DType::kF32, 8, 48), lse(DType::kF32, 8, 3);
  prompt.attend_in_chunks(*set, 16, out, lse);
  const Tensor before = out, before_lse = lse;
  Tensor none = Tensor(DType::kF32, 8, 48).fill(5.0f), none_lse(DType::kF32, 8, 3);
  prompt.attend(*set, 0, 0, false, none, none_lse);
  for (int64_t row = 0; row < 8; ++row)
    for (int64_t head = 0; head < 3; ++head)
      EXPECT_EQ(none_lse.at(row, head), -std::numeric_limits<float>::infinity());
  set->merge_attention(none, none_lse, out, lse);
  for (int64_t row = 0; row < 8; ++row) {
    expect_same_row(out, row, before, row, "merged with nothing");
    expect_same_row(lse, row, before_lse, row, "merged with nothing");
  }
}

}  // namespace
}  // namespace foresail
