#include "cache/kv_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cache/ledger.h"
#include "cache/sequence_pages.h"

namespace foresail {
namespace {

CapacityConfig capacity(int64_t usable, int32_t page, int64_t context, int32_t drafts = 0) {
  return {.pool_pages = Pages{usable + 1},
          .page_size = PageSize(page),
          .max_context_len = Tokens{context},
          .max_draft_len = drafts};
}

// K9: the refusal names the numbers, and what is refused is exactly what cannot fit.
TEST(Capacity, RefusesWithTheNumbers) {
  const Capacity c(capacity(64, 64, 100'000));
  EXPECT_EQ(c.fits(Tokens{10}, Tokens{4084}), Pages{64});
  EXPECT_EQ(c.fits(Tokens{12}, Tokens{4084}), Pages{64});
  const Result<Pages> refused = c.fits(Tokens{4097}, Tokens{1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(
      refused.error().message,
      "prompt of 4097 tokens and max_tokens 1 need 65 pages of 64 tokens, the KV pool has 64");
  EXPECT_EQ(refused.error().param, "prompt");
  EXPECT_EQ(c.fits(Tokens{13}, Tokens{4084}).error().param, "max_tokens");
  EXPECT_FALSE(c.fits(Tokens{0}, Tokens{1}));
  EXPECT_FALSE(c.fits(Tokens{1}, Tokens{0}));
  EXPECT_EQ(c.max_total_len(), Tokens{4096});
}

// K9: whatever may be planned stays within prompt + max_tokens, and nothing less is allowed.
TEST(Capacity, DraftsStopWhereTheRequestDoes) {
  const Tokens limit{40};
  for (int32_t i = 0; i < 32; ++i) {
    const int32_t depth = i / 2;
    CapacityConfig config = capacity(40, 1, 40, depth);
    config.drafts_from_bonus = i % 2 == 1;
    const Capacity c(config);
    for (Tokens length{0}; length < limit; length += Tokens{1}) {
      const int32_t drafts = c.most_draft_len(length, limit);
      const Tokens next = length + Tokens{drafts + 1};
      const int32_t next_drafts = c.most_next_draft_len(next, limit);
      EXPECT_LE(c.decode_reach(length, drafts, next_drafts), limit);
      // One more could end a run behind the limit.
      EXPECT_TRUE(drafts == depth || length + Tokens{drafts + 3} > limit);
      EXPECT_TRUE(next_drafts == depth || c.decode_reach(length, drafts, next_drafts + 1) > limit);
      EXPECT_LE(c.prefill_reach(length, c.most_next_draft_len(length, limit)), limit);
    }
  }
}

TEST(Capacity, HugeNumbersDoNotWrap) {
  const Capacity c(capacity(64, 64, 4096));
  for (int64_t huge : {INT64_MAX, INT64_MAX - 1, int64_t{1} << 62}) {
    EXPECT_FALSE(c.fits(Tokens{huge}, Tokens{1}));
    EXPECT_FALSE(c.fits(Tokens{1}, Tokens{huge}));
    EXPECT_FALSE(c.fits(Tokens{huge}, Tokens{huge}));
  }
}

// K2: the row holds the worst case of the longest request, and that is the same whatever K.
TEST(Capacity, TableHoldsTheLongestRequest) {
  for (int32_t page : {1, 16, 32, 64}) {
    for (int32_t drafts = 0; drafts <= 15; ++drafts) {
      const Capacity c(capacity(100'000, page, 128, drafts));
      EXPECT_EQ(Pages{c.table_columns()}, c.worst_case(Tokens{64}, Tokens{64}));
    }
  }
}

// K4: granted in pages, so 100 tokens and a reserve of 8 are 128 tokens.
TEST(SequencePages, GrowsInWholePages) {
  KvCache cache({.capacity = capacity(8, 64, 512), .slots = 2});
  SequencePages pages(cache, SlotId{0}, cache.tree().match("", std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(pages.grow_to(Tokens{108}));
  EXPECT_EQ(pages.size(), Pages{2});
  EXPECT_EQ(pages.missing_for(Tokens{128}), Pages{0});
  EXPECT_EQ(pages.missing_for(Tokens{129}), Pages{1});
}

TEST(SequencePages, FailedGrowthLeavesTheRow) {
  KvCache cache({.capacity = capacity(4, 1, 128), .slots = 1});
  SequencePages pages(cache, SlotId{0}, {});
  ASSERT_TRUE(pages.grow_to(Tokens{2}));
  EXPECT_FALSE(pages.grow_to(Tokens{5}));
  EXPECT_EQ(pages.size(), Pages{2});
  EXPECT_EQ(cache.table().row(SlotId{0})[2], PageTable::kPastEnd);
  EXPECT_EQ(cache.pool().free(), Pages{2});
}

TEST(SequencePages, PublishSharesAdoptsAndReturns) {
  KvCache cache({.capacity = capacity(16, 16, 256), .slots = 2});
  std::vector<int32_t> tokens(50);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto ledger = [&](Pages owned) {
    return Ledger{.free = cache.pool().free(),
                  .cached = cache.tree().size(),
                  .owned = owned,
                  .in_flight = cache.pool().in_flight(),
                  .total = cache.pool().usable()};
  };
  {
    SequencePages a(cache, SlotId{0}, cache.tree().match("", tokens));
    SequencePages b(cache, SlotId{1}, cache.tree().match("", tokens));
    ASSERT_TRUE(a.grow_to(Tokens{50}) && b.grow_to(Tokens{50}));
    cache.pool().note_planned(1);
    cache.pool().note_completed(1);
    a.publish(tokens, Tokens{50}, 1);
    b.publish(tokens, Tokens{50}, 1);
    for (int32_t column = 0; column < 3; ++column) {
      EXPECT_EQ(cache.table().row(SlotId{0})[column], cache.table().row(SlotId{1})[column]);
    }
    EXPECT_NE(cache.table().row(SlotId{0})[3], cache.table().row(SlotId{1})[3]);
    EXPECT_EQ(a.owned(), Pages{1});
    EXPECT_EQ(b.size(), Pages{4});
    ledger(a.owned() + b.owned()).check();
  }
  ledger(Pages{0}).check_idle();
  EXPECT_EQ(cache.tree().size(), Pages{3});
  EXPECT_EQ(cache.tree().evictable(), Pages{3});
  EXPECT_EQ(cache.table().row(SlotId{1})[0], PageTable::kPastEnd);
  // A full pool still serves a newcomer: the cached pages give way.
  SequencePages c(cache, SlotId{0}, {});
  EXPECT_TRUE(c.grow_to(Tokens{256}));
  EXPECT_EQ(cache.tree().size(), Pages{0});
}

}  // namespace
}  // namespace foresail
