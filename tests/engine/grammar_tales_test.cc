// Structured output of a real model: 200 schemas, all valid, the same with every drafter.
#include <gtest/gtest.h>

#include "base/json.h"
#include "engine/engine_harness.h"
#include "foresail/engine.h"
#include "schemas/schema_samples.h"
#include "schemas/schema_validator.h"

namespace foresail {
namespace {

constexpr uint32_t kSchemas = 200;

std::vector<Request> schema_requests(uint32_t count) {
  std::vector<Request> requests;
  for (uint32_t seed = 0; seed < count; ++seed) {
    Request request;
    request.prompt = "The old captain said:";
    request.max_tokens = 400;
    request.output_format = OutputFormat::kJsonSchema;
    request.output_pattern = json_text(SchemaSamples(seed, true).draw());
    request.sampling.temperature = seed % 4 == 3 ? 0.8f : 0.0f;
    request.sampling.seed = seed;
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Answers {
  std::vector<std::string> texts;
  EngineStats stats;
};

Answers answers(SpeculativeAlgorithm algorithm, const std::string& draft, uint32_t count) {
  EngineOptions options;
  options.model_path = model_path("tales");
  options.threads = 2;
  options.context_length = 512;
  options.max_running_requests = 8;
  options.speculative = {.algorithm = algorithm, .draft_model_path = draft, .adaptive = false};
  Engine engine(options);
  Answers out;
  std::vector<SubmitResult> results = engine.submit(schema_requests(count));
  for (SubmitResult& result : results) {
    if (!result) {
      ADD_FAILURE() << result.error().message;
      continue;
    }
    std::string text;
    FinishReason finish{};
    for (const Event& event : *result) {
      text += event.text;
      if (event.finish) finish = *event.finish;
    }
    EXPECT_EQ(finish, FinishReason::kComplete) << text;
    out.texts.push_back(std::move(text));
  }
  engine.drain();
  out.stats = engine.stats();
  return out;
}

TEST(GrammarTales, SchemasAreKeptWithEveryDrafter) {
  const Answers plain = answers(SpeculativeAlgorithm::kNone, "", kSchemas);
  const std::vector<Request> requests = schema_requests(kSchemas);
  ASSERT_EQ(plain.texts.size(), kSchemas);
  for (size_t i = 0; i < kSchemas; ++i) {
    const OrderedJson schema = OrderedJson::parse(requests[i].output_pattern);
    const OrderedJson value = OrderedJson::parse(plain.texts[i], nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << plain.texts[i];
    EXPECT_TRUE(SchemaValidator(schema).valid(value)) << plain.texts[i] << "\n"
                                                      << json_text(schema);
  }
  EXPECT_EQ(answers(SpeculativeAlgorithm::kMtp, "", kSchemas).texts, plain.texts);
  const std::vector<std::string> some(plain.texts.begin(), plain.texts.begin() + 40);
  EXPECT_EQ(answers(SpeculativeAlgorithm::kEagle3, model_path("tales-eagle3"), 40).texts, some);
  EXPECT_EQ(answers(SpeculativeAlgorithm::kNgram, "", 40).texts, some);
  const Answers self = answers(SpeculativeAlgorithm::kStandalone, model_path("tales"), 40);
  EXPECT_EQ(self.texts, some);
  // The model drafts for itself under the same masks, so it is right wherever it may be.
  EXPECT_EQ(self.stats.accepted, self.stats.drafted);
}

}  // namespace
}  // namespace foresail
