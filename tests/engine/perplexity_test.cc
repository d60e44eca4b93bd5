// Bits per byte of a text longer than the window, against logits taken window by window.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine_harness.h"
#include "engine/evaluation.h"

namespace foresail {
namespace {

const char* const kText =
    "The old house stood upon a hill, and from its windows one could see the river, the bridge and "
    "the long white road that led to the town. Nobody had lived in it for many years; but on that "
    "evening, as the two friends came up the path, there was a light in the upper window, and they "
    "stopped and looked at one another.";

double bits(const std::vector<float>& logits, int64_t row, int64_t vocab, int32_t token) {
  double sum = 0.0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(double{logits[row * vocab + i]});
  return (std::log(sum) - double{logits[row * vocab + token]}) / std::log(2.0);
}

// A model that always saw bos first predicts worse without it, so later windows need it as well.
TEST(Perplexity, EveryWindowStartsWithBos) {
  EngineOptions options;
  options.model_path = model_path("tales");
  options.dtype = "f32";
  options.kv_cache_dtype = "f32";
  LoadedModel model(options);
  const auto tokenizer = Tokenizer::load(options.model_path);
  const std::vector<int32_t> ids = tokenizer->encode(kText, {.add_bos = true});
  const auto total = static_cast<int64_t>(ids.size());
  constexpr int64_t kWindow = 32;
  ASSERT_GT(total, 2 * kWindow);

  double expected = 0.0;
  int64_t scored_until = 1;
  for (int64_t begin = 0; scored_until < total; begin += kWindow / 2) {
    const int64_t end = std::min(total, begin + kWindow);
    std::vector<int32_t> input(ids.begin() + begin, ids.begin() + end);
    input[0] = *tokenizer->bos_id();
    const NamedTensor logits = evaluate_logits(model, input, "auto")[0];
    for (; scored_until < end; ++scored_until)
      expected += bits(logits.values, scored_until - 1 - begin, logits.shape[1], ids[scored_until]);
  }
  const Perplexity result = evaluate_perplexity(model, *tokenizer, kText, kWindow);
  EXPECT_EQ(result.token_count, total - 1);
  EXPECT_EQ(result.byte_count, static_cast<int64_t>(std::string(kText).size()));
  EXPECT_NEAR(result.bits_per_byte, expected / static_cast<double>(result.byte_count), 1e-5);
}

TEST(Perplexity, RefusesAWindowThatHoldsNoText) {
  EngineOptions options;
  options.model_path = model_path("tales");
  LoadedModel model(options);
  const auto tokenizer = Tokenizer::load(options.model_path);
  EXPECT_THROW(evaluate_perplexity(model, *tokenizer, kText, 1), Error);
}

}  // namespace
}  // namespace foresail
