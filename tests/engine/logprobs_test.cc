// Log probabilities are those of the model at each position, with speculation as without.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine_harness.h"
#include "engine/evaluation.h"

namespace foresail {
namespace {

struct Collected {
  std::vector<int32_t> ids;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  GenerationStats stats;
};

std::vector<Collected> collect(EngineLoop& loop, const std::vector<Request>& requests) {
  std::vector<Collected> all(requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    loop.submit(*loop.prepare(requests[i]),
                [&collected = all[i]](const Event& event, const GenerationStats& stats) {
                  collected.stats = stats;
                  if (event.token < 0) return;
                  if (collected.ids.empty())
                    collected.prompt_logprobs = event.prompt_logprobs;
                  else
                    EXPECT_TRUE(event.prompt_logprobs.empty());
                  collected.ids.push_back(event.token);
                  if (event.logprobs) collected.logprobs.push_back(*event.logprobs);
                });
  while (loop.step()) {
  }
  return all;
}

// logits [T, V] of a sequence; `token` is what followed its row `row`.
void expect_models_own(const TokenLogprobs& logprobs, const NamedTensor& logits, size_t row,
                       int32_t token, int top_count) {
  const int64_t vocab_size = logits.shape[1];
  const float* values = logits.values.data() + static_cast<int64_t>(row) * vocab_size;
  double sum = 0.0;
  for (int64_t id = 0; id < vocab_size; ++id) sum += std::exp(static_cast<double>(values[id]));
  EXPECT_NEAR(logprobs.chosen, values[token] - std::log(sum), 1e-4);
  ASSERT_EQ(logprobs.top.size(), static_cast<size_t>(top_count));
  if (top_count == 0) return;
  EXPECT_EQ(logprobs.top[0].first, std::max_element(values, values + vocab_size) - values);
  EXPECT_GE(logprobs.top[0].second, logprobs.chosen);
}

TEST(Logprobs, AreTheModelsOwnAtEveryPositionWithAndWithoutSpeculation) {
  std::vector<Request> requests = random_requests(77, 6);
  for (Request& request : requests) request.top_logprobs = 3;
  requests[1].top_logprobs.reset();
  requests[2].top_logprobs = 0;
  requests[3].sampling.frequency_penalty = 0.5f;
  requests[3].sampling.logit_bias = {{5, 3.0f}};

  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNone);
  LoadedModel plain(options);
  EngineLoop plain_loop(plain, nullptr, options);
  const std::vector<Collected> expected = collect(plain_loop, requests);

  options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp);
  options.speculative.steps = 4;
  options.retract_every = 3;
  options.chunked_prefill_size = 7;
  LoadedModel model(options);
  EngineLoop loop(model, nullptr, options);
  const std::vector<Collected> speculated = collect(loop, requests);

  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(speculated[i].ids, expected[i].ids);
    const bool wanted = requests[i].top_logprobs.has_value();
    ASSERT_EQ(expected[i].logprobs.size(), wanted ? expected[i].ids.size() : 0u);
    ASSERT_EQ(speculated[i].logprobs.size(), expected[i].logprobs.size());
    if (!wanted) continue;
    std::vector<int32_t> sequence = requests[i].input_ids;
    sequence.insert(sequence.end(), expected[i].ids.begin(), expected[i].ids.end());
    const std::vector<NamedTensor> tensors = evaluate_logits(plain, sequence, "absorbed");
    for (size_t at = 0; at < expected[i].ids.size(); ++at) {
      EXPECT_EQ(speculated[i].logprobs[at].chosen, expected[i].logprobs[at].chosen);
      EXPECT_EQ(speculated[i].logprobs[at].top, expected[i].logprobs[at].top);
      expect_models_own(expected[i].logprobs[at], tensors[0], requests[i].input_ids.size() + at - 1,
                        expected[i].ids[at], *requests[i].top_logprobs);
    }
  }
}

// However the prompt is cut, whatever is cached, and behind a longer one than a pass of logits.
TEST(Logprobs, OfThePromptAreTheModelsOwn) {
  std::vector<Request> requests = random_requests(78, 6);
  for (Request& request : requests) request.prompt_top_logprobs = 2;
  requests[1].prompt_top_logprobs.reset();
  requests[2].prompt_top_logprobs = 0;
  requests[3].top_logprobs = 1;
  requests[4].input_ids.resize(1);
  requests[5].input_ids.resize(128, 7);

  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNone);
  options.max_total_tokens = 2048;
  LoadedModel plain(options);
  EngineLoop plain_loop(plain, nullptr, options);
  const std::vector<Collected> expected = collect(plain_loop, requests);

  options.speculative = {.algorithm = SpeculativeAlgorithm::kMtp, .steps = 3};
  options.retract_every = 3;
  options.chunked_prefill_size = 7;
  LoadedModel model(options);
  EngineLoop loop(model, nullptr, options);
  for (const bool warm : {false, true}) {
    SCOPED_TRACE(warm ? "warm" : "cold");
    const std::vector<Collected> again = collect(loop, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(again[i].ids, expected[i].ids);
      const std::vector<int32_t>& prompt = requests[i].input_ids;
      const auto& wanted = requests[i].prompt_top_logprobs;
      ASSERT_EQ(expected[i].prompt_logprobs.size(), wanted ? prompt.size() - 1 : 0);
      ASSERT_EQ(again[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size());
      if (!wanted) continue;
      EXPECT_EQ(again[i].stats.cached_tokens, 0);
      const std::vector<NamedTensor> tensors = evaluate_logits(plain, prompt, "absorbed");
      for (size_t at = 0; at + 1 < prompt.size(); ++at) {
        EXPECT_EQ(again[i].prompt_logprobs[at].chosen, expected[i].prompt_logprobs[at].chosen);
        EXPECT_EQ(again[i].prompt_logprobs[at].top, expected[i].prompt_logprobs[at].top);
        expect_models_own(expected[i].prompt_logprobs[at], tensors[0], at, prompt[at + 1], *wanted);
      }
    }
  }
}

}  // namespace
}  // namespace foresail
