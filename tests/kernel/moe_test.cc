#include <set>

#include "kernel/random_inputs.h"

namespace foresail {
namespace {

class Moe : public KernelTest {};
FORESAIL_FOR_ALL_SETS(Moe);

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed run_route(KernelSet& set, const Tensor& logits, const RouteParams& params) {
  const size_t n = static_cast<size_t>(logits.rows() * params.top_k);
  Routed r{std::vector<int32_t>(n, -1), std::vector<float>(n)};
  set.route(logits, params, r.ids.data(), r.weights.data());
  return r;
}

TEST_P(Moe, RouteMatchesOracle) {
  PooledSet set(GetParam());
  const auto ref = oracle();
  // A large bias beside softmax scores of 1/E would make near ties that f32 cannot tell apart.
  std::vector<float> large(384), small(384);
  for (size_t i = 0; i < large.size(); ++i) {
    large[i] = static_cast<float>((i * 37) % 19) / 9.0f - 1.0f;
    small[i] = large[i] / 256.0f;
  }
  for (const auto& [experts, groups, top_groups, k] : kRouteShapes)
    for (const GateScore score : {GateScore::kSoftmax, GateScore::kSigmoid})
      for (const GroupScore group : {GroupScore::kNone, GroupScore::kMax, GroupScore::kTopTwoSum})
        for (const bool normalize : {false, true}) {
          RouteParams p{score,
                        group,
                        experts,
                        k,
                        groups,
                        top_groups,
                        normalize,
                        2.5f,
                        group == GroupScore::kMax      ? nullptr
                        : score == GateScore::kSoftmax ? small.data()
                                                       : large.data()};
          const Tensor logits = Tensor(DType::kF32, 40, experts, 1).randomize(9, 2.0f);
          const Routed got = run_route(*set, logits, p);
          const Routed want = run_route(*ref, logits, p);
          EXPECT_EQ(got.ids, want.ids) << GetParam().label() << " E " << experts;
          for (size_t i = 0; i < want.weights.size(); ++i)
            ASSERT_NEAR(got.weights[i], want.weights[i], 1e-5 * std::abs(want.weights[i]) + 1e-9);
          const Routed alone = run_route(*set, logits.pick({17}), p);
          for (size_t j = 0; j < static_cast<size_t>(k); ++j) {
            EXPECT_EQ(alone.ids[j], got.ids[17 * static_cast<size_t>(k) + j]);
            EXPECT_EQ(alone.weights[j], got.weights[17 * static_cast<size_t>(k) + j]);
          }
        }
}

TEST_P(Moe, RouteTiesAndNaN) {
  PooledSet set(GetParam());
  Tensor logits = Tensor(DType::kF32, 4, 16).fill(0.5f);
  for (int e = 0; e < 16; ++e) logits.set(1, e, std::nanf(""));
  logits.set(2, 3, std::nanf(""));
  logits.set(2, 9, 5.0f);
  logits.set(3, 0, std::numeric_limits<float>::infinity());
  for (const GateScore score : {GateScore::kSoftmax, GateScore::kSigmoid})
    for (const GroupScore group : {GroupScore::kNone, GroupScore::kTopTwoSum}) {
      const RouteParams p{score, group, 16, 3, 4, 2, true, 1.0f, nullptr};
      const Routed got = run_route(*set, logits, p);
      EXPECT_EQ(std::vector<int32_t>(got.ids.begin(), got.ids.begin() + 3),
                (std::vector<int32_t>{0, 1, 2}));
      for (int row = 0; row < 4; ++row) {
        const std::set<int32_t> distinct(got.ids.begin() + row * 3, got.ids.begin() + row * 3 + 3);
        EXPECT_EQ(distinct.size(), 3u);
        EXPECT_GE(*distinct.begin(), 0);
        EXPECT_LT(*distinct.rbegin(), 16);
      }
      if (score == GateScore::kSigmoid) {
        EXPECT_EQ(got.ids[6], 9);
      }
    }
}

TEST_P(Moe, ExpertsMatchOracleAndDoNotDependOnTheBatch) {
  const auto ref = oracle();
  for (const auto& [rows, count, k, hidden, inner] :
       {std::tuple{1, 8, 2, 128, 48},
        {40, 8, 3, 130, 33},
        {130, 6, 2, 530, 17} /* streamed and not, sums cut by columns */,
        {5, 4, 4, 65, 16},
        {70, 2, 1, 32, 7},
        {1500, 5, 3, 16, 16} /* more pairs than one batch */}) {
    PooledSet set(GetParam(), 2);
    const RandomExperts mine(*set, count, hidden, inner);
    const RandomExperts theirs(*ref, count, hidden, inner);
    const Tensor x = Tensor(act(), rows, hidden, 1).randomize(1);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (int t = 0; t < rows; ++t) {
      const std::vector<int> order = shuffled(count, static_cast<uint64_t>(t));
      for (int j = 0; j < k; ++j) {
        ids.push_back(order[static_cast<size_t>(j)]);
        weights.push_back(0.1f + 0.3f * static_cast<float>((t + j) % 5));
      }
    }
    const Tensor before = Tensor(DType::kF32, rows, hidden, 2).randomize(5);
    Tensor got = before;
    Tensor want = before;
    set->experts(x, mine.weights, ids.data(), weights.data(), k, got);
    ref->experts(x, theirs.weights, ids.data(), weights.data(), k, want);
    expect_close(got, want, is_bf16() ? 4e-3 : 3e-6, GetParam().label() + " experts");
    for (int threads = 1; threads <= 4; ++threads) {
      PooledSet other(GetParam(), threads);
      const RandomExperts packed(*other, count, hidden, inner);
      std::vector<int> which = shuffled(rows, static_cast<uint64_t>(threads));
      which.resize(static_cast<size_t>((rows + threads - 1) / threads));
      Tensor some = before.pick(which);
      std::vector<int32_t> some_ids;
      std::vector<float> some_weights;
      for (int row : which)
        for (int j = 0; j < k; ++j) {
          some_ids.push_back(ids[static_cast<size_t>(row * k + j)]);
          some_weights.push_back(weights[static_cast<size_t>(row * k + j)]);
        }
      other->experts(x.pick(which), packed.weights, some_ids.data(), some_weights.data(), k, some);
      for (size_t i = 0; i < which.size(); ++i)
        expect_same_row(some, static_cast<int64_t>(i), got, which[i],
                        GetParam().label() + " threads " + std::to_string(threads));
    }
  }
}

}  // namespace
}  // namespace foresail
