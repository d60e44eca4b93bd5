// Metadata is built for the backend that reads it and for nothing else; every build is counted.
#include <gtest/gtest.h>

#include "engine/engine_harness.h"

namespace foresail {
namespace {

struct Served {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<int64_t>> accepted_at;
  EngineStats stats;
};

Served serve_with(EngineOptions options, SpeculativeAlgorithm algorithm,
                  const std::string& golden = "g13_v3_mtp") {
  EngineOptions base = tiny_options(golden, algorithm, 16);
  options.speculative = base.speculative;
  options.speculative.steps = 4;
  options.model_path = base.model_path;
  options.dtype = base.dtype;
  options.threads = base.threads;
  options.page_size = 16;
  options.context_length = base.context_length;
  options.max_total_tokens = 4096;
  options.slot_count = options.max_running_requests = 4;
  LoadedModel model(options);
  EngineLoop loop(model, nullptr, options);
  Served served;
  for (const Output& output : serve(loop, random_requests(31, 8))) {
    served.ids.push_back(output.ids);
    served.accepted_at.push_back(output.stats.accepted_at);
  }
  served.stats = loop.stats();
  return served;
}

EngineOptions with(const std::string& backend, const std::string& path, int64_t chunk) {
  EngineOptions options;
  options.attention_backend = backend;
  options.attention_path = path;
  options.chunked_prefill_size = chunk;
  return options;
}

struct Counts {
  int64_t plans, key_index_builds, chunk_lists, ragged_plans;
  bool operator==(const Counts&) const = default;
};
Counts counts(const Served& served) {
  return {served.stats.attention_plans, served.stats.key_index_builds, served.stats.chunk_lists,
          served.stats.ragged_plans};
}

TEST(MetadataCounts, PagedBuildsNothing) {
  for (const char* backend : {"paged", "trtllm_mla", "tokenspeed_mla", "flashmla"}) {
    const Served served = serve_with(with(backend, "absorbed", 16), SpeculativeAlgorithm::kMtp);
    EXPECT_EQ(served.stats.key_index_builds, 0);
    EXPECT_EQ(served.stats.chunk_lists, 0);
    EXPECT_EQ(served.stats.ragged_plans, 0);
    EXPECT_GT(served.stats.drafted, 0);
  }
}

TEST(MetadataCounts, IndexedBuildsOneListPerPlan) {
  const Served paged = serve_with(with("paged", "absorbed", 16), SpeculativeAlgorithm::kMtp);
  const Served indexed = serve_with(with("indexed", "absorbed", 16), SpeculativeAlgorithm::kMtp);
  EXPECT_EQ(indexed.ids, paged.ids);
  EXPECT_EQ(indexed.accepted_at, paged.accepted_at);
  EXPECT_EQ(indexed.stats.attention_plans, paged.stats.attention_plans);
  EXPECT_EQ(indexed.stats.key_index_builds, indexed.stats.attention_plans);
  EXPECT_EQ(indexed.stats.ragged_plans, 0);
}

TEST(MetadataCounts, RaggedPlansOnlyWhereIndexedRunsExpandedChunks) {
  const Served paged = serve_with(with("paged", "expanded", 16), SpeculativeAlgorithm::kMtp);
  EXPECT_GT(paged.stats.chunk_lists, 0);
  EXPECT_EQ(paged.stats.ragged_plans, 0);
  EXPECT_EQ(paged.stats.fallbacks_prefix + paged.stats.fallbacks_segmented, 0);
  const Served indexed = serve_with(with("indexed", "expanded", 16), SpeculativeAlgorithm::kMtp);
  EXPECT_EQ(indexed.ids, paged.ids);
  EXPECT_EQ(indexed.stats.chunk_lists, paged.stats.chunk_lists);
  // These prefixes are shorter than one chunk.
  EXPECT_EQ(indexed.stats.ragged_plans, indexed.stats.chunk_lists);
  // No chunk runs: prompts whole, no cached prefix.
  EngineOptions whole = with("indexed", "expanded", 4096);
  whole.disable_radix_cache = true;
  const Served unchunked = serve_with(whole, SpeculativeAlgorithm::kMtp);
  EXPECT_EQ(unchunked.stats.chunk_lists, 0);
  EXPECT_EQ(unchunked.stats.ragged_plans, 0);
}

TEST(MetadataCounts, WithoutPrefixChunksAPrefixRunsAbsorbed) {
  EngineOptions options = with("paged", "expanded", 16);
  options.disable_chunked_prefix_cache = true;
  const Served served = serve_with(options, SpeculativeAlgorithm::kMtp);
  EXPECT_EQ(served.stats.chunk_lists, 0);
  EXPECT_GT(served.stats.fallbacks_prefix, 0);
  EXPECT_EQ(served.stats.fallbacks_segmented, 0);
  options = with("indexed", "expanded", 16);
  options.segmented_prefill = true;
  options.fallback_attention_backend = "paged";
  const Served segmented = serve_with(options, SpeculativeAlgorithm::kMtp);
  EXPECT_EQ(segmented.stats.chunk_lists, 0);
  EXPECT_EQ(segmented.stats.fallbacks_prefix, 0);
  EXPECT_GT(segmented.stats.fallbacks_segmented, 0);
  EXPECT_EQ(segmented.ids,
            serve_with(with("paged", "absorbed", 16), SpeculativeAlgorithm::kMtp).ids);
}

TEST(MetadataCounts, EachToggleChangesExactlyItsOwnCountAndNoToken) {
  const Served base = serve_with(with("paged", "expanded", 16), SpeculativeAlgorithm::kMtp);

  EngineOptions options = with("paged", "expanded", 16);
  options.skip_draft_kv_indices = false;
  const Served draft_indices = serve_with(options, SpeculativeAlgorithm::kMtp);
  EXPECT_EQ(draft_indices.ids, base.ids);
  EXPECT_EQ(draft_indices.accepted_at, base.accepted_at);
  EXPECT_GT(draft_indices.stats.key_index_builds, 0);
  Counts expected = counts(base);
  expected.key_index_builds = draft_indices.stats.key_index_builds;
  EXPECT_EQ(counts(draft_indices), expected);

  options = with("paged", "expanded", 16);
  options.skip_mha_chunk_metadata = false;
  const Served chunk_metadata = serve_with(options, SpeculativeAlgorithm::kMtp);
  EXPECT_EQ(chunk_metadata.ids, base.ids);
  EXPECT_EQ(chunk_metadata.accepted_at, base.accepted_at);
  expected = counts(base);
  expected.ragged_plans = base.stats.chunk_lists;
  EXPECT_EQ(counts(chunk_metadata), expected);
}

// The float64 oracle through the same engine: what it says is what the fast backends say.
TEST(ReferenceBackend, GivesTheTextOfTheOthers) {
  for (const char* path : {"absorbed", "expanded"}) {
    const Served paged = serve_with(with("paged", path, 16), SpeculativeAlgorithm::kMtp);
    const Served reference = serve_with(with("reference", path, 16), SpeculativeAlgorithm::kMtp);
    EXPECT_EQ(reference.ids, paged.ids);
    EXPECT_EQ(reference.stats.key_index_builds, 0);
  }
}

}  // namespace
}  // namespace foresail
