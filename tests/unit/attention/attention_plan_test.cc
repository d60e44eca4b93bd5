// The plan of a pass is a pure function of the pass and the configuration.
#include "attention/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "attention/attention_path.h"
#include "attention/pass_planner.h"
#include "base/error.h"

namespace foresail {
namespace {

ModelConfig deepseek_dims() {
  ModelConfig config;
  config.kv_lora_rank = 512;
  config.rope_dim = 64;
  config.nope_dim = config.value_dim = 128;
  return config;
}

AttentionPlan plan(PassKind kind, std::vector<PassLengths> requests, AttentionConfig config = {}) {
  return plan_attention({kind, requests}, config, deepseek_dims());
}

TEST(AttentionPlan, FallsBackWithoutPrefixChunksOrInsideASegmentedGraph) {
  for (const bool disabled : {false, true})
    for (const bool prefix : {false, true})
      for (const bool segmented : {false, true}) {
        AttentionConfig config;
        config.backend = AttentionBackend::kIndexed;
        config.prefill_path = AttentionPath::kExpanded;
        config.disable_chunked_prefix_cache = disabled;
        config.segmented_prefill = segmented;
        const AttentionPlan it =
            plan(PassKind::kPrefill, {{64, 64}, {64, prefix ? 128 : 64}}, config);
        const bool fallback = (disabled && prefix) || segmented;
        EXPECT_EQ(must_fall_back(disabled, prefix, segmented), fallback);
        EXPECT_EQ(it.fallback, fallback);
        EXPECT_EQ(it.path, fallback ? AttentionPath::kAbsorbed : AttentionPath::kExpanded);
        EXPECT_EQ(it.backend, fallback ? AttentionBackend::kPaged : AttentionBackend::kIndexed);
        EXPECT_EQ(it.prefix_chunks.empty(), fallback || !prefix);
        EXPECT_EQ(it.ragged_plans, !it.prefix_chunks.empty());
      }
}

TEST(AttentionPlan, OnlyPrefillCanBeExpandedOrFallBack) {
  AttentionConfig config;
  config.prefill_path = AttentionPath::kExpanded;
  config.segmented_prefill = true;
  config.disable_chunked_prefix_cache = true;
  for (const PassKind kind : {PassKind::kVerify, PassKind::kDraftExtend, PassKind::kDraftLoop}) {
    const AttentionPlan it = plan(kind, {{4, 4000}}, config);
    EXPECT_EQ(it.path, AttentionPath::kAbsorbed);
    EXPECT_FALSE(it.fallback);
    EXPECT_TRUE(it.prefix_chunks.empty());
  }
}

TEST(AttentionPlan, BreakEvenLiesAt171Rows) {
  const ModelConfig dims = deepseek_dims();
  const int64_t keys = 1 << 20;
  EXPECT_EQ(cheaper_path(dims, 170, keys), AttentionPath::kAbsorbed);
  EXPECT_EQ(cheaper_path(dims, 172, keys), AttentionPath::kExpanded);
}

TEST(AttentionPlan, ChunksCoverEveryPrefixOnce) {
  AttentionConfig config;
  config.prefill_path = AttentionPath::kExpanded;
  config.prefix_chunk_keys = 100;
  const AttentionPlan it =
      plan(PassKind::kPrefill, {{10, 10}, {10, 260}, {5, 105}, {7, 108}}, config);
  ASSERT_EQ(it.prefix_chunks.size(), 3u);
  EXPECT_EQ(it.prefix_chunks[0].parts,
            (std::vector<PrefixPart>{{1, 0, 100}, {2, 0, 100}, {3, 0, 100}}));
  EXPECT_EQ(it.prefix_chunks[1].parts, (std::vector<PrefixPart>{{1, 100, 100}, {3, 100, 1}}));
  EXPECT_EQ(it.prefix_chunks[2].parts, (std::vector<PrefixPart>{{1, 200, 50}}));
}

TEST(AttentionPlan, UnreadWorkIsDoneOnlyOnRequest) {
  AttentionConfig config;
  config.prefill_path = AttentionPath::kExpanded;
  const std::vector<PassLengths> with_prefix{{64, 256}};
  EXPECT_FALSE(plan(PassKind::kDraftLoop, {{1, 100}}, config).key_index);
  EXPECT_FALSE(plan(PassKind::kPrefill, with_prefix, config).ragged_plans);
  config.skip_draft_kv_indices = false;
  config.skip_mha_chunk_metadata = false;
  EXPECT_TRUE(plan(PassKind::kDraftLoop, {{1, 100}}, config).key_index);
  EXPECT_FALSE(plan(PassKind::kVerify, {{4, 100}}, config).key_index);
  EXPECT_FALSE(plan(PassKind::kDraftExtend, {{4, 100}}, config).key_index);
  EXPECT_TRUE(plan(PassKind::kPrefill, with_prefix, config).ragged_plans);
  EXPECT_FALSE(plan(PassKind::kPrefill, {{64, 64}}, config).ragged_plans);
}

TEST(AttentionPlan, RequestsOfOneFormAndRoundingShareAPass) {
  const std::vector<PassLengths> requests{{2, 9},     {2048, 2048}, {255, 255}, {1, 500},
                                          {200, 200}, {1024, 4096}, {256, 256}};
  const auto passes = split_prefill(requests, {}, deepseek_dims());
  EXPECT_EQ(passes, (std::vector<std::vector<size_t>>{{1, 5, 6}, {2, 4}, {0, 3}}));
}

// What ran before must not matter: the same planner after any order of seven kinds of pass gives
// what a fresh one gives.
TEST(PassPlanner, EveryOrderOfPassesGivesThePlansOfAFreshPlanner) {
  struct Item {
    PassKind kind;
    PassLengths lengths;
  };
  const std::array<Item, 7> items{{{PassKind::kPrefill, {300, 300}},
                                   {PassKind::kPrefill, {300, 812}},
                                   {PassKind::kPrefill, {3, 515}},
                                   {PassKind::kVerify, {1, 100}},
                                   {PassKind::kVerify, {4, 103}},
                                   {PassKind::kDraftLoop, {1, 101}},
                                   {PassKind::kDraftExtend, {4, 103}}}};
  std::vector<int32_t> block_table(64);
  for (size_t i = 0; i < block_table.size(); ++i) block_table[i] = static_cast<int32_t>(i) + 1;
  const ModelConfig dims = deepseek_dims();
  for (const AttentionBackend backend : {AttentionBackend::kPaged, AttentionBackend::kIndexed}) {
    for (const bool segmented : {false, true}) {
      AttentionConfig config;
      config.backend = backend;
      config.segmented_prefill = segmented;
      std::vector<AttentionPlan> fresh;
      for (const Item& item : items) {
        PassPlanner planner(config, dims);
        const PassRows rows{block_table.data(), item.lengths};
        fresh.push_back(planner.prepare(item.kind, {&rows, 1}).plan);
      }
      PassPlanner planner(config, dims);
      std::array<size_t, 7> order{0, 1, 2, 3, 4, 5, 6};
      int orders = 0;
      do {
        for (const size_t index : order) {
          const PassRows rows{block_table.data(), items[index].lengths};
          const PreparedPass pass = planner.prepare(items[index].kind, {&rows, 1});
          ASSERT_EQ(pass.plan, fresh[index]);
          ASSERT_EQ(pass.key_index.kv_indices.size(),
                    pass.plan.key_index ? static_cast<size_t>(items[index].lengths.kv_end) : 0u);
        }
        ++orders;
      } while (std::next_permutation(order.begin(), order.end()));
      EXPECT_EQ(orders, 5040);
      EXPECT_EQ(planner.counts().plans, 7 * 5040);
      EXPECT_EQ(planner.counts().key_index_builds,
                backend == AttentionBackend::kIndexed ? (segmented ? 4 : 7) * 5040 : 0);
    }
  }
}

TEST(PassPlanner, ADraftLoopIsOnePlanWhateverItsSteps) {
  std::vector<int32_t> block_table(8, 3);
  const ModelConfig dims = deepseek_dims();
  for (const AttentionBackend backend : {AttentionBackend::kPaged, AttentionBackend::kIndexed}) {
    for (int steps = 1; steps <= 7; ++steps) {
      AttentionConfig config;
      config.backend = backend;
      config.page_size = 16;
      PassPlanner planner(config, dims);
      const PassRows rows[] = {{block_table.data(), {1, 33}}, {block_table.data(), {1, 5}}};
      const int pass_counts[] = {steps, 1};
      const PreparedDraftLoop loop = planner.prepare_draft_loop(rows, pass_counts);
      for (int step = 0; step < steps; ++step) {
        const SequenceRows at = loop.step_rows(0, step, 0);
        EXPECT_EQ(at.kv_end, 33 + step);
        EXPECT_EQ(at.row_count, 1);
        if (backend == AttentionBackend::kIndexed) {
          EXPECT_EQ(at.page_table[at.kv_end - 1], 3 * 16 + (at.kv_end - 1) % 16);
        }
      }
      EXPECT_EQ(planner.counts().plans, 1);
      EXPECT_EQ(planner.counts().key_index_builds, backend == AttentionBackend::kIndexed ? 1 : 0);
    }
  }
}

// Its next page may not be its own yet: nothing is listed that nothing reads.
TEST(PassPlanner, ADraftLoopListsNoKeysOfARequestWithoutAPass) {
  std::vector<int32_t> block_table(8, 3);
  AttentionConfig config;
  config.backend = AttentionBackend::kIndexed;
  config.page_size = 16;
  PassPlanner planner(config, deepseek_dims());
  const PassRows rows[] = {{nullptr, {1, 17}}, {block_table.data(), {1, 5}}};
  const int pass_counts[] = {0, 2};
  const PreparedDraftLoop loop = planner.prepare_draft_loop(rows, pass_counts);
  EXPECT_EQ(loop.first.key_index.kv_indptr, (std::vector<int32_t>{0, 0, 6}));
}

TEST(AttentionBackendNames, OthersNamesMapToWhatReadsTheSame) {
  for (const char* name : {"paged", "trtllm_mla", "tokenspeed_mla", "flashmla"})
    EXPECT_EQ(parse_attention_backend(name), AttentionBackend::kPaged);
  for (const char* name : {"indexed", "flashinfer_mla"})
    EXPECT_EQ(parse_attention_backend(name), AttentionBackend::kIndexed);
  EXPECT_EQ(parse_attention_backend("reference"), AttentionBackend::kReference);
  EXPECT_THROW(parse_attention_backend("triton"), Error);
}

}  // namespace
}  // namespace foresail
