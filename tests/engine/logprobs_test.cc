// Log probabilities are those of the model at each position, with speculation as without.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine_harness.h"
#include "engine/evaluation.h"

namespace foresail {
namespace {

struct Collected {
  std::vector<int32_t> ids;
  std::vector<TokenLogprobs> logprobs;
};

std::vector<Collected> collect(EngineLoop& loop, const std::vector<Request>& requests) {
  std::vector<Collected> all(requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    loop.submit(*loop.prepare(requests[i]),
                [&collected = all[i]](const Event& event, const GenerationStats&) {
                  if (event.token < 0) return;
                  collected.ids.push_back(event.token);
                  if (event.logprobs) collected.logprobs.push_back(*event.logprobs);
                });
  while (loop.step()) {
  }
  return all;
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
    const int64_t vocab_size = tensors[0].shape[1];
    for (size_t at = 0; at < expected[i].ids.size(); ++at) {
      const TokenLogprobs& token = expected[i].logprobs[at];
      EXPECT_EQ(speculated[i].logprobs[at].chosen, token.chosen);
      EXPECT_EQ(speculated[i].logprobs[at].top, token.top);
      ASSERT_EQ(token.top.size(), static_cast<size_t>(*requests[i].top_logprobs));
      const float* logits =
          tensors[0].values.data() + (requests[i].input_ids.size() + at - 1) * vocab_size;
      double sum = 0.0;
      for (int64_t id = 0; id < vocab_size; ++id) sum += std::exp(static_cast<double>(logits[id]));
      EXPECT_NEAR(token.chosen, logits[expected[i].ids[at]] - std::log(sum), 1e-4);
      if (!token.top.empty()) {
        EXPECT_EQ(token.top[0].first, std::max_element(logits, logits + vocab_size) - logits);
        EXPECT_GE(token.top[0].second, token.chosen);
      }
    }
  }
}

}  // namespace
}  // namespace foresail
