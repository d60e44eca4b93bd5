// Key lists and ragged plans hold what a backend without pages has to read.
#include "attention/key_index.h"

#include <gtest/gtest.h>

#include "attention/ragged_plan.h"

namespace foresail {
namespace {

TEST(KeyIndex, ListsTheSlotOfEveryKeyRequestAfterRequest) {
  const int32_t first[] = {7, 2, 9};
  const int32_t second[] = {4};
  const KeyIndexRow rows[] = {{first, 35}, {second, 0}, {second, 3}};
  const KeyIndex index = build_key_index(rows, 16);
  EXPECT_EQ(index.kv_indptr, (std::vector<int32_t>{0, 35, 35, 38}));
  ASSERT_EQ(index.kv_indices.size(), 38u);
  for (int32_t key = 0; key < 35; ++key)
    EXPECT_EQ(index.kv_indices[key], first[key / 16] * 16 + key % 16);
  EXPECT_EQ(index.kv_indices[35], 64);
  EXPECT_EQ(index.kv_indices[37], 66);
}

TEST(KeyIndex, NoBlockListsMoreKeysForALongerRequest) {
  std::vector<int32_t> block_table(1300, 5);
  for (const int32_t key_count : {1, 511, 512, 513, 80000}) {
    const KeyIndexRow row{block_table.data(), key_count};
    std::vector<int32_t> out(key_count + kKeysPerBlock, -1);
    for (int32_t block = 0; block * kKeysPerBlock < key_count; ++block) {
      std::fill(out.begin(), out.end(), -1);
      fill_key_block(row, 64, block, out.data());
      const auto written = std::count_if(out.begin(), out.end(), [](int32_t v) { return v >= 0; });
      EXPECT_LE(written, kKeysPerBlock);
      EXPECT_GE(out[block * kKeysPerBlock], 0);
    }
  }
}

TEST(RaggedPlan, RequestsWithoutKeysInTheChunkAreEmptyRanges) {
  const std::vector<PassLengths> requests{{10, 10}, {10, 260}, {5, 5}, {7, 108}};
  const PrefixChunk chunk{.parts = {{1, 100, 100}, {3, 100, 1}}};
  const RaggedPlan plan = build_ragged_plan(chunk, requests);
  EXPECT_EQ(plan.qo_indptr, (std::vector<int32_t>{0, 10, 20, 25, 32}));
  EXPECT_EQ(plan.kv_indptr, (std::vector<int32_t>{0, 0, 100, 100, 101}));
  EXPECT_EQ(ragged_parts(plan), chunk.parts);
}

}  // namespace
}  // namespace foresail
