// Output with speculation, batching, chunking, paging, caching and retraction equals plain output.
#include <gtest/gtest.h>

#include "engine/draftings.h"

namespace foresail {
namespace {

constexpr int kPromptCount = 6;
constexpr int64_t kChunkSizes[] = {1, 5, 16, 33, 64, 2048, 7};

LoadedModel& plain_model(const std::string& golden) {
  static std::map<std::string, std::unique_ptr<LoadedModel>> models;
  std::unique_ptr<LoadedModel>& model = models[golden];
  if (model == nullptr) {
    EngineOptions options = tiny_options(golden, SpeculativeAlgorithm::kNone);
    options.slot_count = 1;
    model = std::make_unique<LoadedModel>(options);
  }
  return *model;
}

void expect_idle_and_balanced(const EngineLoop& loop) {
  const EngineStats stats = loop.stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.pages_owned + stats.pages_in_flight, 0);
  EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
}

// What the draft loop of a model knows of: temperature and seed.
bool has_plain_sampling(const Request& request) {
  return !request.sampling.has_penalties() && request.sampling.top_p == 1.0f &&
         request.min_tokens == 0;
}

void expect_counters(const std::string& name, const GenerationStats& stats, bool undisturbed,
                     bool plain_sampling) {
  if (name == "right") {
    EXPECT_EQ(stats.accepted, stats.drafted);
  }
  if (name == "self" && undisturbed && plain_sampling) {
    EXPECT_EQ(stats.accepted, stats.drafted);
  }
  if (name == "wrong" || name == "none") {
    EXPECT_EQ(stats.accepted, 0);
  }
  // Prefill brings the first token, every pass its accepted drafts and one more; what lies past a
  // stop is cut.
  if (undisturbed) {
    EXPECT_LE(stats.output_tokens, 1 + stats.verify_passes + stats.accepted);
    EXPECT_GE(stats.output_tokens, 1 + stats.verify_passes);
  }
  if (name == "wrong" && undisturbed) {
    EXPECT_EQ(stats.output_tokens, 1 + stats.verify_passes);
  }
}

class Lossless : public testing::TestWithParam<DraftingCase> {};

TEST_P(Lossless, OutputEqualsPlainDecode) {
  const auto [index, page_size, backend] = GetParam();
  const Drafting& drafting = kDraftings[index];
  EngineOptions options = tiny_options(drafting, page_size);
  options.attention_backend = backend;
  LoadedModel model(options);
  int prompts = 0;
  int64_t retractions = 0;
  for (int steps = 1; steps <= 7; ++steps) {
    const uint64_t seed = 1000 * index + 10 * page_size + steps;
    std::vector<Request> requests = random_requests(seed, kPromptCount);
    requests[2].speculative_steps = 0;  // speculating and not in one batch
    requests[3].speculative_steps = 1 + steps / 2;
    const std::vector<Output> expected = plain_outputs(plain_model(drafting.golden), requests);
    const bool right = drafting.name == "right";
    const bool wrong = drafting.name == "wrong";
    if (right || wrong)
      model.use_drafter(std::make_unique<ScriptedDrafter>(requests, expected, right ? 0 : 1));
    options.speculative.steps = steps;
    options.chunked_prefill_size = kChunkSizes[(steps + page_size) % 7];
    options.retract_every = steps % 2 == 0 ? 3 : 0;
    options.late_results = steps % 3 == 0;
    options.seed_schedule = steps % 4 == 0 ? seed : 0;
    options.disable_radix_cache = steps == 5;
    EngineLoop loop(model, nullptr, options);
    for (const bool warm : {false, true}) {
      const std::vector<Output> outputs = serve(loop, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(fmt::format("{} page {} steps {} request {} {}", drafting.name, page_size,
                                 steps, i, warm ? "warm" : "cold"));
        const GenerationStats& stats = outputs[i].stats;
        EXPECT_EQ(outputs[i].ids, expected[i].ids);
        EXPECT_EQ(stats.finish, expected[i].stats.finish);
        EXPECT_EQ(outputs[i].endings, 1);
        expect_counters(drafting.name, stats, options.retract_every == 0,
                        has_plain_sampling(requests[i]));
        if (i == 2) {
          EXPECT_EQ(stats.drafted, 0);
        }
      }
      prompts += static_cast<int>(requests.size());
      expect_idle_and_balanced(loop);
    }
    retractions += loop.stats().retractions;
  }
  EXPECT_GT(retractions, 0);
  RecordProperty("prompts", prompts);
}

INSTANTIATE_TEST_SUITE_P(All, Lossless, drafting_cases(kAllDraftings, {1, 16, 32, 64}),
                         drafting_case_name);

// A cache of 8-bit codes rounds, but everybody reads the same codes.
TEST(LosslessF8, OutputEqualsPlainDecode) {
  for (int index = 0; index < kHeadDraftings; ++index) {
    const Drafting& drafting = kDraftings[index];
    EngineOptions options = tiny_options(drafting, 16);
    options.kv_cache_dtype = "fp8_e4m3";
    options.kv_cache_scale = 0.25;
    EngineOptions plain_options = options;
    plain_options.speculative.algorithm = SpeculativeAlgorithm::kNone;
    plain_options.slot_count = 1;
    LoadedModel plain(plain_options);
    const std::vector<Request> requests = random_requests(90 + index, 6);
    const std::vector<Output> expected = plain_outputs(plain, requests);
    options.speculative.steps = 3;
    LoadedModel model(options);
    options.chunked_prefill_size = 7;
    options.retract_every = 3;
    EngineLoop loop(model, nullptr, options);
    const std::vector<Output> outputs = serve(loop, requests);
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(outputs[i].ids, expected[i].ids);
  }
}

// Drafts depend on the drafter's own cache, so equal acceptance says that its entries are those of
// an undisturbed run, whatever the chunks and the prefix cache.
TEST(DraftCache, AcceptanceIsIndependentOfChunksAndCacheAndNeighbours) {
  for (int index = 0; index < kHeadDraftings; ++index) {
    const Drafting& drafting = kDraftings[index];
    EngineOptions options = tiny_options(drafting, 16);
    options.max_total_tokens = 4096;
    options.speculative.steps = 3;
    LoadedModel model(options);
    std::vector<Request> requests = random_requests(7 + index, 5);
    for (Request& request : requests) request.max_tokens += 10;
    std::vector<std::vector<int64_t>> first;
    for (const int64_t chunk : {int64_t{2048}, int64_t{1}, int64_t{17}, int64_t{64}}) {
      options.chunked_prefill_size = chunk;
      options.max_running_requests = chunk == 17 ? 1 : 5;
      EngineLoop loop(model, nullptr, options);
      for (int round = 0; round < 2; ++round) {
        std::vector<std::vector<int64_t>> counters;
        for (const Output& output : serve(loop, requests)) {
          counters.push_back(output.stats.accepted_at);
          counters.push_back(output.stats.drafted_at);
        }
        if (first.empty()) first = counters;
        EXPECT_EQ(counters, first) << drafting.name << " chunk " << chunk << " round " << round;
      }
    }
  }
}

// Row of position p in layer 0..n-1, as bytes.
std::vector<std::byte> latent_row(const LatentCache& cache, const int32_t* page_table,
                                  int position) {
  const size_t row_bytes = (cache.latent_dim + cache.rope_dim) * sizeof(float);
  const size_t place =
      static_cast<size_t>(page_table[position / cache.page_size]) * cache.page_size +
      position % cache.page_size;
  const auto* begin = static_cast<const std::byte*>(cache.data) + place * row_bytes;
  return {begin, begin + row_bytes};
}

TEST(LatentRows, AfterEveryIterationEqualThoseOfPlainDecode) {
  for (int index = 0; index < kUnscriptedDraftings; ++index) {
    const Drafting& drafting = kDraftings[index];
    Request request = random_requests(50 + index, 1)[0];
    request.max_tokens = 30;
    request.ignore_eos = true;
    LoadedModel& plain = plain_model(drafting.golden);
    const std::vector<Output> expected = plain_outputs(plain, {request});
    std::vector<int32_t> plain_table(plain.pages_per_slot());
    for (size_t i = 0; i < plain_table.size(); ++i) plain_table[i] = static_cast<int32_t>(i) + 1;

    EngineOptions options = tiny_options(drafting, 1);
    LoadedModel model(options);
    EngineLoop loop(model, nullptr, options);
    Output output;
    loop.submit(*loop.prepare(request), collect_into(output));
    while (loop.step()) {
      if (output.endings > 0 || output.ids.empty()) continue;
      const int32_t* table = loop.scheduler().cache().table().row(SlotId{0}).data();
      const auto valid = static_cast<int>(request.input_ids.size() + output.ids.size()) - 1;
      for (size_t layer = 0; layer < plain.store().layers().size(); ++layer)
        for (int position = 0; position < valid; ++position)
          ASSERT_EQ(latent_row(model.store().layers()[layer], table, position),
                    latent_row(plain.store().layers()[layer], plain_table.data(), position))
              << drafting.name << " layer " << layer << " position " << position;
    }
    EXPECT_EQ(output.ids, expected[0].ids);
  }
}

}  // namespace
}  // namespace foresail
