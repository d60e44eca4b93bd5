// The scripted model through the whole serving loop, every cached row checked at every read.
#include <gtest/gtest.h>

#include <random>

#include "engine/scripted_loop.h"

namespace foresail {
namespace {

struct Text {
  Request request;
  std::vector<int32_t> expected;
};

// Some share prefixes, and two are twins.
std::vector<Text> texts(uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  const std::vector<int32_t> shared = scripted_prompt(70, seed);
  std::vector<Text> result;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> prompt;
    if (i % 2 == 1)
      prompt.assign(shared.begin(), shared.begin() + 30 + static_cast<int>(random() % 40));
    const std::vector<int32_t> tail =
        scripted_prompt(1 + static_cast<int>(random() % 40), random());
    if (i % 4 != 3) prompt.insert(prompt.end(), tail.begin(), tail.end());
    Text text{scripted_request(prompt, 1 + static_cast<int64_t>(random() % 30)), {}};
    text.request.priority = static_cast<int>(random() % 2);
    if (i == 4) text.request.speculative_steps = 0;
    if (i == 5) text.request.speculative_steps = 1;
    text.expected = continue_text(hashed_token, prompt, text.request.max_tokens);
    result.push_back(std::move(text));
  }
  result.push_back(result[0]);
  // The twin speculates on entries that nobody wanted drafts from.
  result.push_back(result[4]);
  result.back().request.speculative_steps.reset();
  return result;
}

void expect_all_right(EngineLoop& loop, const std::vector<Text>& all) {
  std::vector<Request> requests;
  for (const Text& text : all) requests.push_back(text.request);
  const std::vector<Output> outputs = serve(loop, requests);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(outputs[i].stats.finish, FinishReason::kLength) << "request " << i;
    ASSERT_EQ(outputs[i].ids, all[i].expected) << "request " << i;
  }
  expect_idle(loop);
}

// page size, whether drafts come from a second model instead of a head
class DigestEngine : public testing::TestWithParam<std::tuple<int, bool>> {};

// K4, K7, K8 at once: chunks of any size, cold and warm cache, retraction, late results, pages that
// run out, both backends and forms of prefill, chains of 1 to 7 drafts that cross page borders.
TEST_P(DigestEngine, NoPassEverReadsARowOfAnotherText) {
  const auto [page_size, from_model] = GetParam();
  for (int steps = 1; steps <= 7; ++steps) {
    EngineOptions options = scripted_options();
    options.page_size = page_size;
    options.speculative.steps = steps;
    options.attention_path = steps % 2 == 0 ? "expanded" : "absorbed";
    options.attention_backend = steps / 2 % 2 == 0 ? "paged" : "indexed";
    options.max_total_tokens = 384;
    ScriptedLoop scripted(options, certain(hashed_token));
    const NextToken guess = often_right(hashed_token, 20 * (steps % 6));
    if (from_model)
      scripted.use_model_drafter(certain(guess));
    else
      scripted.use_digest_drafter(guess);
    const std::vector<Text> all = texts(100 * steps + page_size, 9);
    for (int round = 0; round < 8; ++round) {
      SCOPED_TRACE(fmt::format("page {} steps {} round {}", page_size, steps, round));
      options.late_results = round % 2 == 1;
      options.retract_every = round % 3 == 2 ? 3 : 0;
      options.chunked_prefill_size = std::vector<int>{2048, 1, 7, 16, 33}[round % 5];
      options.seed_schedule = round % 4 == 3 ? round : 0;
      options.disable_radix_cache = round == 5;
      EngineLoop& loop = scripted.restart(options);
      expect_all_right(loop, all);
      expect_all_right(loop, all);  // warm
      const EngineStats stats = loop.stats();
      if (steps % 6 == 0) {
        EXPECT_EQ(stats.accepted, 0);
      }
      if (steps % 6 == 5) {
        EXPECT_EQ(stats.accepted, stats.drafted);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DigestEngine,
                         testing::Combine(testing::Values(1, 16, 32, 64), testing::Bool()),
                         [](const auto& param) {
                           return (std::get<1>(param.param) ? "model_page" : "head_page") +
                                  std::to_string(std::get<0>(param.param));
                         });

}  // namespace
}  // namespace foresail
