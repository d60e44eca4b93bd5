#include <gtest/gtest.h>

#include "cache/page_pool.h"
#include "cache/page_table.h"

namespace foresail {
namespace {

TEST(Ids, ConversionsRoundAsTheirNamesSay) {
  const PageSize size(64);
  EXPECT_EQ(pages_holding(Tokens{0}, size), Pages{0});
  EXPECT_EQ(pages_holding(Tokens{64}, size), Pages{1});
  EXPECT_EQ(pages_holding(Tokens{65}, size), Pages{2});
  EXPECT_EQ(full_pages(Tokens{127}, size), Pages{1});
  EXPECT_EQ(tokens_in(Pages{3}, size), Tokens{192});
  EXPECT_EQ(pairs_of(Tokens{64}), Pairs{63});
  EXPECT_EQ(pairs_of(Tokens{0}), Pairs{0});
  EXPECT_THROW(PageSize(8), Error);
  EXPECT_THROW(PageSize(0), Error);
}

// K2: offsets stay exact past 2^31 bytes.
TEST(Ids, ByteOffsetIs64Bit) {
  EXPECT_EQ(byte_offset(PageId{2'000'000}, 63, PageSize(64), 1152), (2'000'000ll * 64 + 63) * 1152);
}

TEST(PagePool, NeverGivesOutTheSinkAndIsDeterministic) {
  PagePool pool(Pages{5}, PageSize(16));
  std::vector<PageRef> pages = pool.take(Pages{4});
  ASSERT_EQ(pages.size(), 4u);
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(pages[i].id(), PageId{i + 1});
  EXPECT_TRUE(pool.take(Pages{1}).empty());
  EXPECT_EQ(pool.held(), Pages{4});
  pages.clear();
  EXPECT_EQ(pool.free(), Pages{4});  // no step was planned: free at once
  EXPECT_THROW(PagePool(Pages{1}, PageSize(1)), Error);
}

// K8: a page is free only after the last step that may use it.
TEST(PagePool, FreesAfterThePlannedStepCompletes) {
  PagePool pool(Pages{4}, PageSize(1));
  std::vector<PageRef> pages = pool.take(Pages{3});
  pool.note_planned(1);
  pages.pop_back();
  pool.note_planned(2);
  pages.pop_back();
  EXPECT_EQ(pool.free(), Pages{0});
  EXPECT_EQ(pool.in_flight(), Pages{2});
  pool.note_completed(1);
  EXPECT_EQ(pool.free(), Pages{1});
  EXPECT_EQ(pool.in_flight(), Pages{1});
  pages.back().reset_after(1);  // last used by a step that is over
  EXPECT_EQ(pool.free(), Pages{2});
  pool.note_completed(2);
  EXPECT_EQ(pool.free(), Pages{3});
}

TEST(PagePool, MovedHandleHasOneOwner) {
  PagePool pool(Pages{3}, PageSize(1));
  std::vector<PageRef> pages = pool.take(Pages{2});
  PageRef a = std::move(pages[0]);
  EXPECT_FALSE(pages[0]);  // NOLINT(bugprone-use-after-move)
  a = std::move(pages[1]);
  EXPECT_EQ(pool.free(), Pages{1});
  pages.clear();
  EXPECT_EQ(pool.free(), Pages{1});
  a.reset();
  EXPECT_EQ(pool.free(), Pages{2});
}

// K8: an allocation that fails half-way leaves the pool as it was.
TEST(PagePool, FailedTakeLeavesNoTrace) {
  PagePool pool(Pages{6}, PageSize(1));
  pool.note_planned(1);
  for (int fail_at = 0; fail_at < 4; ++fail_at) {
    int asked = 0;
    pool.inject_failure([&] { return asked++ == fail_at; });
    EXPECT_TRUE(pool.take(Pages{4}).empty());
    EXPECT_EQ(pool.free(), Pages{5});
    EXPECT_EQ(pool.in_flight(), Pages{0});
  }
  pool.inject_failure({});
  std::vector<PageRef> pages = pool.take(Pages{5});
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(pages[i].id(), PageId{i + 1});
}

TEST(PagePoolDeathTest, LiveHandleAtDestructionAborts) {
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<PagePool>(Pages{3}, PageSize(1));
        std::vector<PageRef> pages = pool->take(Pages{1});
        pool.reset();
      },
      "still have an owner");
}

// K2: one rule gives the width of every table.
TEST(PageTable, WidthRule) {
  const auto columns = [](int64_t tokens, int32_t page) {
    return PageTable::columns_for(Tokens{tokens}, PageSize(page));
  };
  EXPECT_EQ(columns(9416, 1), 9472);
  EXPECT_EQ(columns(9416, 16), 592);
  EXPECT_EQ(columns(9416, 32), 296);
  EXPECT_EQ(columns(9416, 64), 148);
  EXPECT_EQ(columns(1, 64), 2);
  EXPECT_EQ(columns(128, 64), 2);
  EXPECT_EQ(columns(129, 64), 4);
  EXPECT_EQ(columns(120000, 64), 1876);
}

TEST(PageTable, RowsAreStableAndTheRestIsPastEnd) {
  PageTable table(3, 4);
  table.set(SlotId{1}, 0, PageId{7});
  table.set(SlotId{1}, 1, PageId{9});
  const std::span<const int32_t> row = table.row(SlotId{1});
  EXPECT_EQ(std::vector<int32_t>(row.begin(), row.end()),
            (std::vector<int32_t>{7, 9, PageTable::kPastEnd, PageTable::kPastEnd}));
  table.set(SlotId{2}, 0, PageId{5});
  EXPECT_EQ(row.data(), table.row(SlotId{1}).data());
  for (int32_t entry : table.row(SlotId{0})) EXPECT_EQ(entry, PageTable::kPastEnd);
  // K2: padding rows hold the sink in every build.
  for (int32_t entry : table.row(table.padding_slot())) EXPECT_EQ(entry, kSinkPage.value);
}

TEST(PageTable, ReplicaFollowsTheLog) {
  PageTable master(3, 4), replica(3, 4);
  master.set(SlotId{0}, 0, PageId{3});
  master.set(SlotId{0}, 1, PageId{4});
  master.set(SlotId{2}, 0, PageId{8});
  replica.apply(master.take_updates());
  master.clear(SlotId{0});
  master.set(SlotId{0}, 0, PageId{8});
  master.clear(SlotId{0});
  master.set(SlotId{0}, 0, PageId{2});
  master.set(SlotId{0}, 0, PageId{6});  // re-homed
  const std::vector<RowUpdate> updates = master.take_updates();
  EXPECT_EQ(updates.size(), 3u);  // what a cleared row was told before is dropped
  replica.apply(updates);
  EXPECT_TRUE(std::ranges::equal(master.entries(), replica.entries()));
  EXPECT_TRUE(master.take_updates().empty());
}

TEST(PageTableDeathTest, OutOfRangeAborts) {
  PageTable table(2, 2);
  EXPECT_DEATH(table.set(SlotId{2}, 0, PageId{1}), "slot");  // the padding row is not writable
  EXPECT_DEATH(table.set(SlotId{0}, 2, PageId{1}), "column");
  EXPECT_DEATH(table.set(SlotId{0}, 0, kSinkPage), "page");
}

}  // namespace
}  // namespace foresail
