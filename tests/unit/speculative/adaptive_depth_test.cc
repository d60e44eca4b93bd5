// The depth that is chosen is the one that pays, and what it costs to find out is little.
#include "speculative/adaptive_depth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace foresail {
namespace {

// An iteration of `batch` requests: `row` seconds per verified row beyond the first per request,
// `draft` seconds per draft.
StepCosts linear_costs(int32_t max_depth, double row, double draft) {
  std::vector<MeasuredBatch> batches;
  for (const int32_t batch : {1, 4, 16}) {
    MeasuredBatch& measured = batches.emplace_back(MeasuredBatch{batch, {}, {}});
    for (int32_t depth = 0; depth <= max_depth; ++depth) {
      measured.seconds.push_back(1.0 + 0.02 * batch + row * depth * batch + draft * depth);
      measured.accepted_seconds.push_back(0.0);
    }
  }
  return StepCosts(std::move(batches));
}

TEST(StepCosts, BetweenAndBeyondMeasuredBatchesALine) {
  const StepCosts costs({{1, {1.0}, {0.0}}, {4, {2.5}, {0.0}}, {16, {8.5}, {0.0}}});
  EXPECT_DOUBLE_EQ(costs.at(1, 0, 0), 1.0);
  EXPECT_DOUBLE_EQ(costs.at(2, 0, 0), 1.5);
  EXPECT_DOUBLE_EQ(costs.at(10, 0, 0), 5.5);
  EXPECT_DOUBLE_EQ(costs.at(32, 0, 0), 16.5);
  EXPECT_DOUBLE_EQ(StepCosts({{4, {2.0}, {0.0}}}).at(2, 0, 0), 1.0);
}

// Times of one and four requests whose noise points down: on that line 64 would take no time.
TEST(StepCosts, BeyondMeasuredBatchesNoRequestMakesAnIterationFaster) {
  const StepCosts costs({{1, {1.0, 1.3}, {0.0, 0.2}}, {4, {1.2, 1.1}, {0.0, 0.1}}});
  EXPECT_DOUBLE_EQ(costs.at(64, 0, 0), 5.2);
  EXPECT_DOUBLE_EQ(costs.at(64, 1, 0), 1.1);
  EXPECT_DOUBLE_EQ(costs.at(64, 1, 1), 1.2);
  EXPECT_DOUBLE_EQ(costs.at(2, 1, 0), 1.3 - 0.2 / 3);
}

TEST(StepCosts, AcceptedDraftsCostWhatTheDrafterTakesIn) {
  const StepCosts costs({{2, {1.0, 2.0, 3.0}, {0.0, 0.1, 0.4}}});
  EXPECT_DOUBLE_EQ(costs.at(2, 0, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(costs.at(2, 2, 0.0), 3.0);
  EXPECT_DOUBLE_EQ(costs.at(2, 2, 1.0), 3.2);
  EXPECT_DOUBLE_EQ(costs.at(2, 2, 2.0), 3.4);
}

struct Case {
  double acceptance, row, draft;
  int32_t batch;
};

TEST(AdaptiveDepth, NeverLosesMoreThanThreePercentAgainstTheBestFixedDepth) {
  for (const Case& c : std::vector<Case>{{0.0, 0.1, 0.05, 1},
                                         {0.0, 0.3, 0.05, 16},
                                         {0.3, 0.2, 0.1, 1},
                                         {0.5, 0.05, 0.02, 4},
                                         {0.8, 0.02, 0.02, 1},
                                         {0.8, 0.1, 0.05, 16},
                                         {0.95, 0.01, 0.01, 16},
                                         {1.0, 0.0, 0.01, 1}}) {
    constexpr int32_t kMaxDepth = 5;
    const StepCosts costs = linear_costs(kMaxDepth, c.row, c.draft);
    const auto tokens_of = [&](int32_t depth, uint64_t draw, AdaptiveDepth* learner) {
      double tokens = 0;
      for (int32_t request = 0; request < c.batch; ++request) {
        int accepted = 0;
        while (accepted < depth && random_uniform(7, 1000 * draw + 10 * request + accepted,
                                                  RandomPurpose::kSimulateAccept) < c.acceptance)
          ++accepted;
        if (learner != nullptr) learner->observe(depth, accepted);
        tokens += 1 + accepted;
      }
      return tokens;
    };
    double best_rate = 0.0;
    for (int32_t depth = 0; depth <= kMaxDepth; ++depth) {
      double tokens = 1.0, chain = 1.0;
      for (int32_t i = 0; i < depth; ++i) tokens += chain *= c.acceptance;
      best_rate = std::max(best_rate, c.batch * tokens / costs.at(c.batch, depth, 0));
    }
    AdaptiveDepth adaptive(costs);
    double tokens = 0.0, seconds = 0.0;
    for (uint64_t step = 0; step < 5000; ++step) {
      const int32_t depth = adaptive.choose(c.batch);
      seconds += costs.at(c.batch, depth, 0);
      tokens += tokens_of(depth, step, &adaptive);
    }
    EXPECT_GT(tokens / seconds, 0.97 * best_rate)
        << "acceptance " << c.acceptance << " row " << c.row << " batch " << c.batch;
  }
}

// Start-up measured one depth wrongly, and the machine runs at a changing pace ever since.
TEST(AdaptiveDepth, FindsTheBestDepthThoughItsCostWasMeasuredWrongly) {
  constexpr int32_t kMaxDepth = 3, kBatch = 4;
  constexpr double kAcceptance = 0.75;
  const StepCosts truth = linear_costs(kMaxDepth, 0.05, 0.05);
  const auto rate = [&](int32_t depth) {
    double tokens = 1.0, chain = 1.0;
    for (int32_t i = 0; i < depth; ++i) tokens += chain *= kAcceptance;
    return tokens / truth.at(kBatch, depth, 0);
  };
  double best_rate = 0.0;
  for (int32_t depth = 0; depth <= kMaxDepth; ++depth) best_rate = std::max(best_rate, rate(depth));
  for (int32_t wrong = 0; wrong <= kMaxDepth; ++wrong)
    for (const double error : {0.7, 1.4}) {
      std::vector<double> seconds;
      for (int32_t depth = 0; depth <= kMaxDepth; ++depth)
        seconds.push_back(truth.at(kBatch, depth, 0) * (depth == wrong ? error : 1.0));
      AdaptiveDepth adaptive(StepCosts({{kBatch, seconds, std::vector<double>(kMaxDepth + 1)}}));
      double tokens = 0.0, spent = 0.0;
      int32_t verified = 0;
      for (uint64_t step = 0; step < 20000; ++step) {
        const int32_t depth = adaptive.choose(kBatch);
        const double pace = 1.0 + 0.5 * std::sin(static_cast<double>(step) / 700.0) +
                            0.2 * random_uniform(3, step, RandomPurpose::kShuffle);
        if (verified == depth)
          adaptive.observe_seconds(kBatch, depth, pace * truth.at(kBatch, depth, 0));
        for (int32_t request = 0; request < kBatch; ++request) {
          int accepted = 0;
          while (accepted < verified &&
                 random_uniform(5, 100 * step + 10 * request + accepted,
                                RandomPurpose::kSimulateAccept) < kAcceptance)
            ++accepted;
          adaptive.observe(verified, accepted);
        }
        verified = depth;
        if (step < 5000) continue;  // learning
        tokens += rate(depth) * truth.at(kBatch, depth, 0);
        spent += truth.at(kBatch, depth, 0);
      }
      EXPECT_GT(tokens / spent, 0.97 * best_rate) << "depth " << wrong << " measured x " << error;
    }
}

TEST(AdaptiveDepth, ComesBackWhenAcceptanceRises) {
  AdaptiveDepth adaptive(linear_costs(3, 0.1, 0.05));
  for (int step = 0; step < 2000; ++step) adaptive.observe(adaptive.choose(1), 0);
  EXPECT_EQ(adaptive.choose(1), 0);
  int32_t depth = 0;
  for (int step = 0; step < 20000; ++step) {
    depth = adaptive.choose(1);
    adaptive.observe(depth, depth);
  }
  EXPECT_EQ(depth, 3);
}

// The first draft costs more than a whole iteration without and those after it next to nothing, so
// that one draft loses where five gain. A text of which only first drafts are right at times must
// not end that for good.
TEST(AdaptiveDepth, ComesBackAcrossADepthThatDoesNotPay) {
  constexpr int32_t kMaxDepth = 5, kBatch = 4;
  AdaptiveDepth adaptive(
      StepCosts({{kBatch, {1.0, 2.4, 2.45, 2.5, 2.55, 2.6}, std::vector<double>(kMaxDepth + 1)}}));
  std::vector<int64_t> chosen(kMaxDepth + 1);
  for (uint64_t step = 0; step < 60000; ++step) {
    const int32_t depth = adaptive.choose(kBatch);
    for (int32_t request = 0; request < kBatch; ++request) {
      int accepted = 0;
      while (accepted < depth &&
             random_uniform(9, 100 * step + 10 * request + accepted,
                            RandomPurpose::kSimulateAccept) < (step >= 3000    ? 0.9
                                                               : accepted == 0 ? 0.6
                                                                               : 0.05))
        ++accepted;
      adaptive.observe(depth, accepted);
    }
    if (step == 2999) {
      EXPECT_LT(adaptive.expected_tokens(kMaxDepth), 2.0);
    }
    if (step >= 55000) ++chosen[depth];
  }
  EXPECT_GT(chosen[kMaxDepth], 4500);
}

// Two batch sizes take turns whose best depths differ, so that the usual depth never stays for as
// long as probes are apart.
TEST(AdaptiveDepth, ComesBackThoughTheUsualDepthKeepsChanging) {
  AdaptiveDepth adaptive(StepCosts({{1, {1.0, 1.2, 1.4, 1.6}, std::vector<double>(4)},
                                    {16, {1.0, 1.2, 2.6, 3.2}, std::vector<double>(4)}}));
  int64_t deepest = 0;
  for (int step = 0; step < 300000; ++step) {
    const int32_t batch_size = step / 7 % 2 == 0 ? 1 : 16;
    const int32_t depth = adaptive.choose(batch_size);
    const int most = step < 3000 ? 2 : 3;  // the third draft is refused at first
    for (int32_t request = 0; request < batch_size; ++request)
      adaptive.observe(depth, std::min(depth, most));
    if (step >= 299000 && batch_size == 1) deepest += depth == 3;
  }
  EXPECT_GT(deepest, 400);
}

TEST(AdaptiveDepth, SecondsThatAreNoneChangeNothing) {
  const StepCosts costs = linear_costs(3, 0.1, 0.05);
  AdaptiveDepth adaptive(costs), undisturbed(costs);
  for (const double seconds : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    for (int step = 0; step < 3000; ++step) {
      const int32_t depth = adaptive.choose(4);
      ASSERT_EQ(depth, undisturbed.choose(4));
      adaptive.observe_seconds(4, depth, seconds);
      for (AdaptiveDepth* learner : {&adaptive, &undisturbed})
        learner->observe(depth, std::min(depth, step % 3));
    }
  }
  for (int32_t depth = 0; depth <= 3; ++depth)
    EXPECT_EQ(adaptive.expected_seconds(4, depth), undisturbed.expected_seconds(4, depth));
}

}  // namespace
}  // namespace foresail
