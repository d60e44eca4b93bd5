// The trained model in bf16, where drafts really are accepted.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "engine/engine_harness.h"
#include "engine/measure_step_costs.h"

namespace foresail {
namespace {

const char* const kPrompts[] = {
    "Once upon a time there was a little",
    "The old king said to his daughter",
    "In the middle of the forest stood a house, and in the house lived",
    "\"Where are you going?\" asked the wolf.",
    "A poor miller had three sons, and when he died",
};

struct TalesCase {
  SpeculativeAlgorithm algorithm;
  int page_size;
};

TEST(Tales, OutputEqualsPlainDecodeAndDraftsAreAccepted) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNone, 64);
  options.model_path = model_path("tales");
  options.dtype = "bf16";
  options.max_total_tokens = 0;
  options.slot_count = 1;
  const auto tokenizer = Tokenizer::load(options.model_path);
  std::vector<Request> requests;
  for (const char* prompt : kPrompts) {
    for (const float temperature : {0.0f, 0.8f}) {
      Request& request = requests.emplace_back();
      request.input_ids = tokenizer->encode(prompt, {.add_bos = true});
      request.max_tokens = 24;
      request.sampling = {.temperature = temperature, .top_p = 0.95f, .seed = requests.size()};
    }
  }
  std::vector<Output> expected;
  {
    LoadedModel plain(options);
    expected = plain_outputs(plain, requests);
  }
  for (const auto& [algorithm, page_size] :
       {TalesCase{SpeculativeAlgorithm::kMtp, 16}, TalesCase{SpeculativeAlgorithm::kEagle3, 64},
        TalesCase{SpeculativeAlgorithm::kNgram, 32}}) {
    options.page_size = page_size;
    options.max_total_tokens = 320;
    options.slot_count = options.max_running_requests = 6;
    options.speculative = {.algorithm = algorithm,
                           .draft_model_path = model_path("tales-eagle3"),
                           .steps = 7,
                           .adaptive = false};
    LoadedModel model(options);
    for (const int steps : {1, 3, 7}) {
      options.speculative.steps = steps;
      options.chunked_prefill_size = steps == 1 ? 6 : 2048;
      options.retract_every = steps == 7 ? 3 : 0;
      options.late_results = steps == 3;
      EngineLoop loop(model, tokenizer.get(), options);
      const std::vector<Output> outputs = serve(loop, requests);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(outputs[i].ids, expected[i].ids)
            << static_cast<int>(algorithm) << " steps " << steps << " request " << i;
      const EngineStats stats = loop.stats();
      const double accept_length =
          1.0 + static_cast<double>(stats.accepted) / static_cast<double>(stats.verify_passes);
      if (algorithm != SpeculativeAlgorithm::kNgram) {
        EXPECT_GT(accept_length, steps == 1 ? 1.2 : 1.3) << static_cast<int>(algorithm);
      }
    }
  }
}

// However short the context and long the page: made-up requests always have a key, and fit.
TEST(Tales, AdaptiveDepthMeasuresShortContexts) {
  for (const int page_size : {1, 2, 64})
    for (const int64_t context_length : {4, 40, 100, 200}) {
      SCOPED_TRACE(fmt::format("page {} context {}", page_size, context_length));
      EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp, page_size);
      options.context_length = context_length;
      options.max_total_tokens = 0;
      LoadedModel model(options);
      const StepCosts costs = measure_step_costs(model, 2, 3, 0.1);
      for (int32_t depth = 0; depth <= 3; ++depth) EXPECT_GT(costs.at(1, depth, 0), 0.0);
    }
}

// Pretended acceptance would count accepted rows twice; what runs afterwards pretends as asked.
TEST(Tales, AdaptiveDepthIsMeasuredWithoutPretendedAcceptance) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp, 16);
  options.speculative.simulate_accept_length = 2.5;
  LoadedModel model(options);
  measure_step_costs(model, 1, 2, 0.1);
  EXPECT_EQ(model.iteration().simulate_accept_length({}), 2.5);
}

}  // namespace
}  // namespace foresail
