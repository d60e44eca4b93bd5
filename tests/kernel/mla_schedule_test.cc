// The cut of a batch over thread blocks: each unit exactly once, balanced, slots never shared.
#include "kernels/cuda/mla_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace foresail::cuda {
namespace {

struct Flat {
  std::vector<int> begin;  // [requests] first unit
  std::vector<int> units;  // [requests]
  int total = 0;
};

Flat flatten(const std::vector<int>& key_lens, int unit_log2) {
  Flat flat;
  for (int key_len : key_lens) {
    flat.begin.push_back(flat.total);
    flat.units.push_back(unit_count(key_len, unit_log2));
    flat.total += flat.units.back();
  }
  return flat;
}

void check_cut(const std::vector<int>& key_lens, int unit_log2, int max_blocks) {
  const Flat flat = flatten(key_lens, unit_log2);
  const int blocks = blocks_used(flat.total, max_blocks);
  ASSERT_GE(blocks, 1);
  std::vector<int> owner(flat.total, -1);
  int shortest = flat.total;
  int longest = 0;
  for (int block = 0; block < blocks; ++block) {
    const int begin = cut_begin(block, flat.total, blocks);
    const int end = cut_begin(block + 1, flat.total, blocks);
    shortest = std::min(shortest, end - begin);
    longest = std::max(longest, end - begin);
    for (int unit = begin; unit < end; ++unit) {
      ASSERT_EQ(owner[unit], -1);
      owner[unit] = block;
      ASSERT_EQ(block_of_unit(unit, flat.total, blocks), block);
    }
  }
  ASSERT_EQ(cut_begin(0, flat.total, blocks), 0);
  ASSERT_EQ(cut_begin(blocks, flat.total, blocks), flat.total);
  ASSERT_GE(shortest, 1);
  ASSERT_LE(longest - shortest, 1);

  // Every (shared request, block) pair has a slot of its own, and the group covers the owners.
  std::set<int> slots;
  for (size_t request = 0; request < key_lens.size(); ++request) {
    const int begin = flat.begin[request];
    const int last = begin + flat.units[request] - 1;
    const SplitGroup group = split_group(begin, flat.units[request], flat.total, blocks);
    ASSERT_EQ(group.first_block, owner[begin]);
    ASSERT_EQ(group.first_block + group.block_count - 1, owner[last]);
    if (group.block_count == 1) continue;
    for (int i = 0; i < group.block_count; ++i) {
      const int slot = partial_slot(group.first_block + i, begin, flat.total, blocks);
      ASSERT_LT(slot, 2 * blocks);
      ASSERT_TRUE(slots.insert(slot).second);
    }
  }
}

TEST(MlaSchedule, SmallQuotientIsExact) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200000; ++trial) {
    const uint32_t divisor = 1 + random() % (1u << (random() % 31));
    const uint32_t quotient = random() % 256;
    if (uint64_t{quotient + 1} * divisor > 0xffffffffu) continue;
    for (uint32_t rest : {0u, divisor / 2, divisor - 1}) {
      ASSERT_EQ(small_quotient(quotient * divisor + rest, divisor), static_cast<int>(quotient));
    }
  }
}

TEST(MlaSchedule, CoversEveryUnitOnce) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int> key_lens(1 + random() % 64);
    const int longest = 1 << (random() % 15);
    for (int& key_len : key_lens) key_len = static_cast<int>(random() % longest);
    if (trial % 3 == 0) key_lens[random() % key_lens.size()] = 0;
    check_cut(key_lens, 4 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 160));
  }
}

TEST(MlaSchedule, LargestBatch) {
  check_cut(std::vector<int>(128, 131072), 4, 132);
  check_cut(std::vector<int>(1024, 1), 6, 132);
  check_cut({131072}, 4, 132);
}

TEST(MlaSchedule, EmptyRequestsOwnAUnit) {
  EXPECT_EQ(unit_count(0, 6), 1);
  EXPECT_EQ(unit_count(1, 6), 1);
  EXPECT_EQ(unit_count(64, 6), 1);
  EXPECT_EQ(unit_count(65, 6), 2);
  check_cut({0, 0, 0}, 6, 132);
  check_cut({0}, 4, 1);
}

TEST(MlaSchedule, EqualRequestsAreCutAtTheirBorders) {
  EXPECT_EQ(balanced_blocks(1, 132), 132);
  EXPECT_EQ(balanced_blocks(32, 132), 128);
  EXPECT_EQ(balanced_blocks(16, 132), 128);
  EXPECT_EQ(balanced_blocks(100, 132), 132);
  EXPECT_EQ(balanced_blocks(300, 132), 132);
  const int blocks = balanced_blocks(32, 132);
  const int units = 128;
  for (int request = 0; request < 32; ++request) {
    EXPECT_EQ(cut_begin(request * blocks / 32, 32 * units, blocks), request * units);
  }
}

TEST(MlaSchedule, RowBlocksHaveSchedulesOfTheirOwnWhereFewBlocksStayIdle) {
  EXPECT_EQ(row_sets_of(1, 132), 1);
  EXPECT_EQ(row_sets_of(2, 132), 2);
  EXPECT_EQ(row_sets_of(8, 132), 8);    // 128 of 132
  EXPECT_EQ(row_sets_of(20, 132), 20);  // 120
  EXPECT_EQ(row_sets_of(29, 132), 1);   // 116
  EXPECT_EQ(row_sets_of(128, 132), 128);
  EXPECT_EQ(row_sets_of(4, 2), 1);
}

TEST(MlaSchedule, FixedUnitsFollowFromTheLengthAlone) {
  EXPECT_EQ(fixed_unit_log2(0, 8, 5), 8);
  EXPECT_EQ(fixed_unit_log2(8192, 8, 5), 8);
  EXPECT_EQ(fixed_unit_log2(8193, 8, 5), 9);
  EXPECT_EQ(fixed_unit_log2(1 << 30, 8, 5), 25);
  for (int key_len = 1; key_len < 300000; key_len += 37) {
    const int log2 = fixed_unit_log2(key_len, 8, 5);
    EXPECT_LE(unit_count(key_len, log2), 32);
    if (log2 > 8) {
      EXPECT_GT(unit_count(key_len, log2 - 1), 32);
    }
    // A table that holds no more than 2048 keys allows fewer parts: the units are the same.
    if (key_len <= 2048) {
      EXPECT_EQ(fixed_unit_log2(key_len, 8, 3), log2);
    }
  }
}

TEST(MlaSchedule, DraftStepNeverGoesNegative) {
  EXPECT_EQ(visible_keys(10, 3), 13);
  EXPECT_EQ(visible_keys(0, -1), 0);
}

// The kernels divide by shares, row pieces and heads this way.
TEST(MlaSchedule, DividesExactly) {
  std::mt19937 random(3);
  std::vector<uint32_t> divisors = {1,   2,   3,   5,   7,          12,         64,
                                    127, 128, 131, 132, 0x7fffffff, 0x80000000, 0xffffffff};
  for (int i = 0; i < 300; ++i) divisors.push_back(random() % 1000 + 1);
  for (const uint32_t divisor : divisors) {
    const Divider by = divider(divisor);
    std::vector<uint32_t> dividends = {0, 1, divisor - 1, divisor, 0x7fffffff, 0xffffffff};
    for (int i = 0; i < 300; ++i) {
      const uint32_t multiple =
          divisor * static_cast<uint32_t>(random() % (0xffffffff / divisor) + 1);
      dividends.insert(dividends.end(), {multiple - 1, multiple, multiple + divisor / 2});
    }
    for (const uint32_t dividend : dividends) {
      ASSERT_EQ(static_cast<uint32_t>(divide(dividend, by)), dividend / divisor)
          << dividend << " / " << divisor;
    }
  }
}

// What the least log2 is, found by trying.
TEST(MlaSchedule, FixedUnitIsTheLeast) {
  for (int splits_log2 : {0, 1, 5}) {
    for (int key_len : {0, 1, 2, 255, 256, 257, 8191, 8192, 8193, 81920, 1 << 30, 0x7fffffff}) {
      int log2 = 8;
      while (log2 + splits_log2 < 31 && (key_len - 1) >> (log2 + splits_log2) > 0) ++log2;
      EXPECT_EQ(fixed_unit_log2(key_len, 8, splits_log2), log2) << key_len;
    }
  }
}

}  // namespace
}  // namespace foresail::cuda
