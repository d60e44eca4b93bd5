#include "scheduler/prefill_budget.h"

#include <gtest/gtest.h>

namespace foresail {
namespace {

std::vector<int64_t> split(const std::vector<PrefillClaim>& claims, int64_t budget, int32_t page,
                           bool head_first = true) {
  std::vector<int64_t> ends;
  for (Tokens end : split_prefill_budget(claims, Tokens{budget}, PageSize(page), head_first)) {
    ends.push_back(end.value);
  }
  return ends;
}

PrefillClaim claim(int64_t begin, int64_t length, int32_t priority = 0) {
  return {Tokens{begin}, Tokens{length}, priority};
}

using Ends = std::vector<int64_t>;

TEST(PrefillBudget, OneAloneGetsAllOnAPageBorder) {
  EXPECT_EQ(split({claim(0, 1000)}, 200, 64), (Ends{192}));
  EXPECT_EQ(split({claim(192, 300)}, 200, 64), (Ends{300}));
  EXPECT_EQ(split({claim(0, 64)}, 64, 64), (Ends{64}));
  EXPECT_EQ(split({}, 64, 64), Ends{});
}

TEST(PrefillBudget, ShortOnesShareWithTheHead) {
  EXPECT_EQ(split({claim(0, 100'000), claim(0, 10), claim(0, 90)}, 256, 64), (Ends{128, 10, 90}));
  // What the short ones leave goes back to the head.
  EXPECT_EQ(split({claim(0, 100'000), claim(0, 10)}, 256, 64), (Ends{192, 10}));
  // Shortest first among the others, whatever their order.
  EXPECT_EQ(split({claim(0, 100'000), claim(0, 9000), claim(0, 60)}, 256, 64), (Ends{128, 64, 60}));
}

TEST(PrefillBudget, PriorityBeforeLength) {
  EXPECT_EQ(split({claim(0, 1000, 2), claim(0, 128, 1), claim(0, 10, 0)}, 256, 64),
            (Ends{128, 128, 0}));
}

TEST(PrefillBudget, SmallBudgetsTakeTurns) {
  EXPECT_EQ(split({claim(0, 1000), claim(0, 50)}, 64, 64, true), (Ends{64, 0}));
  EXPECT_EQ(split({claim(0, 1000), claim(0, 50)}, 64, 64, false), (Ends{0, 50}));
  EXPECT_EQ(split({claim(5, 1000), claim(0, 50)}, 1, 16, true), (Ends{6, 0}));
  EXPECT_EQ(split({claim(5, 1000), claim(0, 50)}, 1, 16, false), (Ends{5, 1}));
}

TEST(PrefillBudget, BelowAPageChunksStopAtBorders) {
  EXPECT_EQ(split({claim(0, 100)}, 10, 16), (Ends{10}));
  EXPECT_EQ(split({claim(10, 100)}, 10, 16), (Ends{16}));
}

TEST(PrefillBudget, NeverOverBudgetNeverBackwardsAlwaysProgress) {
  for (int32_t page : {1, 16, 32, 64}) {
    for (int64_t budget = 1; budget <= 130; ++budget) {
      for (int64_t variant = 0; variant < 40; ++variant) {
        const std::vector<PrefillClaim> claims{claim(0, 200 + variant), claim(page, page + 1),
                                               claim(0, variant + 1, variant % 3)};
        const Ends ends = split(claims, budget, page, variant % 2 == 0);
        int64_t given = 0;
        for (size_t i = 0; i < claims.size(); ++i) {
          ASSERT_GE(ends[i], claims[i].begin.value);
          ASSERT_LE(ends[i], claims[i].length.value);
          if (budget >= page && ends[i] < claims[i].length.value) {
            ASSERT_EQ(ends[i] % page, 0);
          }
          given += ends[i] - claims[i].begin.value;
        }
        ASSERT_LE(given, budget);
        ASSERT_GT(given, 0);
      }
    }
  }
}

}  // namespace
}  // namespace foresail
