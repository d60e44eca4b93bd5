// An acceptance figure means little without the share of repeated text beside it: text that loops
// is drafted perfectly by looking back.
#include "engine/acceptance.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/engine_harness.h"

namespace foresail {
namespace {

// T23
TEST(Acceptance, LoopingTextIsSaidToBeThat) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNgram, 64);
  options.model_path = model_path("tales");
  options.max_total_tokens = 0;
  options.slot_count = 1;
  options.speculative.steps = 3;
  const auto tokenizer = Tokenizer::load(options.model_path);
  LoadedModel model(options);
  Request request;
  request.max_tokens = 40;
  request.ignore_eos = true;
  request.sampling.temperature = 0.8f;
  const std::vector<std::string> prompts = {"Once upon a time", "The old king said"};

  const Acceptance text = measure_acceptance(model, *tokenizer, prompts, request, 3);
  EXPECT_EQ(text.prompts, 2);
  EXPECT_EQ(text.output_tokens, 80);
  EXPECT_EQ(text.accepted,
            std::accumulate(text.accepted_at.begin(), text.accepted_at.end(), int64_t{0}));
  // Over the passes that had drafts, as everywhere: n-grams often propose none.
  EXPECT_EQ(text.draft_passes, text.drafted_at[0]);
  EXPECT_LT(text.draft_passes, text.verify_passes);
  EXPECT_DOUBLE_EQ(text.accept_length(), 1.0 + static_cast<double>(text.accepted) /
                                                   static_cast<double>(text.draft_passes));
  EXPECT_LT(text.repeated_4gram_share, 0.3);

  request.sampling.logit_bias = {{300, 1000.0f}};
  const Acceptance loop = measure_acceptance(model, *tokenizer, prompts, request, 3);
  EXPECT_GE(loop.accept_length(), 3.5);
  EXPECT_GT(loop.accept_length(), text.accept_length());
  // Of 40 equal tokens the fifth is the first to end a 4-gram that was there before.
  EXPECT_DOUBLE_EQ(loop.repeated_4gram_share, 36.0 / 40.0);
}

}  // namespace
}  // namespace foresail
