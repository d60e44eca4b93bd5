// K6/17, T9: a grammar under speculation. The output is that of plain decoding with the same
// grammar, token for token, whoever drafts and whatever is drafted.
#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/byte_tokenizer.h"
#include "engine/scripted_loop.h"
#include "grammar/compile.h"
#include "schemas/schema_samples.h"
#include "schemas/schema_validator.h"
#include "speculative/ngram_drafter.h"

namespace foresail {
namespace {

constexpr const char* kNameSchema =
    R"({"type":"object","properties":{"name":{"type":"string"}},"required":["name"],
        "additionalProperties":false})";

const Tokenizer& byte_tokenizer() {
  static const auto tokenizer =
      Tokenizer::from_json(byte_tokenizer_json(), byte_tokenizer_config_json(1024));
  return *tokenizer;
}

int32_t byte_token(char byte) {
  return byte_tokenizer().encode(std::string(1, byte))[0];
}

// What the model wants to say, byte for byte, whatever the prompt; with a rank for all other bytes,
// so that a mask leads it somewhere definite.
Script wants(std::string text, size_t prompt_len) {
  return [text = std::move(text), prompt_len](std::span<const int32_t> context,
                                              std::span<float> logits) {
    const size_t at = context.size() - prompt_len;
    for (size_t id = 0; id < logits.size(); ++id)
      logits[id] = static_cast<float>((id * 37 + at * 11) % 101) / 10.0f;
    if (at < text.size()) logits[byte_token(text[at])] = 100.0f;
  };
}

// Proposes the text, whatever has been said; `spoiled` is wrong there.
class TextDrafter final : public Drafter {
 public:
  TextDrafter(std::string text, size_t prompt_len, size_t spoiled)
      : text_(std::move(text)), prompt_len_(prompt_len), spoiled_(spoiled) {}
  std::string_view name() const override { return "text"; }
  void draft(std::span<const DraftRequest> requests,
             std::span<std::vector<int32_t>> drafts) override {
    for (size_t i = 0; i < requests.size(); ++i) {
      drafts[i].clear();
      for (int step = 0; step < requests[i].steps; ++step) {
        const size_t at = requests[i].tokens.size() - prompt_len_ + step;
        drafts[i].push_back(byte_token(at == spoiled_ || at >= text_.size() ? '!' : text_[at]));
      }
    }
  }

 private:
  std::string text_;
  size_t prompt_len_;
  size_t spoiled_;
};

Request guided(Request request, OutputFormat format, std::string pattern) {
  request.output_format = format;
  request.output_pattern = std::move(pattern);
  return request;
}

// The drafter is wrong at every place in turn, then right again.
TEST(GrammarSpeculation, AWrongDraftAtEveryPlace) {
  const std::string text = R"({"name": "Ada \"L\""})";
  constexpr size_t kPromptLen = 5;
  for (const bool late : {false, true}) {
    for (size_t spoiled = 0; spoiled <= text.size(); ++spoiled) {
      for (const int steps : {0, 1, 3, 7}) {
        SCOPED_TRACE(fmt::format("spoiled {} steps {} late {}", spoiled, steps, late));
        EngineOptions options = scripted_options();
        options.speculative.steps = steps;
        options.late_results = late;
        // After its end the model goes on to talk, as one without a grammar would.
        ScriptedLoop scripted(options, wants(text + "\nMore of it.", kPromptLen));
        if (steps > 0)
          scripted.use_drafter(std::make_unique<TextDrafter>(text, kPromptLen, spoiled));
        scripted.use_tokenizer(byte_tokenizer());
        const Request free = scripted_request(scripted_prompt(kPromptLen), 12);
        const std::vector<Output> outputs =
            serve(scripted.loop(), {guided(scripted_request(scripted_prompt(kPromptLen), 200),
                                           OutputFormat::kJsonSchema, kNameSchema),
                                    free});
        EXPECT_EQ(outputs[0].text, text);
        EXPECT_EQ(outputs[0].stats.output_tokens, static_cast<int64_t>(text.size()));
        EXPECT_EQ(outputs[0].stats.finish, FinishReason::kComplete);
        EXPECT_EQ(outputs[0].endings, 1);
        EXPECT_EQ(outputs[1].text, text.substr(0, 12)) << "the free one beside it";
        if (steps > 0 && spoiled == text.size()) {
          EXPECT_EQ(outputs[0].stats.accepted, outputs[0].stats.drafted);
        }
        expect_idle(scripted.loop());
      }
    }
  }
}

// A model that wants prose is led through; drafters of every kind, batched, cut and retracted.
TEST(GrammarSpeculation, EveryDrafterGivesPlainOutput) {
  constexpr size_t kPromptLen = 8;
  const Script prose =
      wants("It was a bright cold day in April, and the clocks struck.", kPromptLen);
  std::vector<Request> requests;
  for (uint32_t seed = 0; seed < 10; ++seed) {
    Request request =
        guided(scripted_request(scripted_prompt(kPromptLen, seed), 90), OutputFormat::kJsonSchema,
               json_text(SchemaSamples(seed, true).draw()));
    request.sampling.temperature = seed % 2 == 0 ? 0.0f : 5.0f;
    request.sampling.seed = seed;
    requests.push_back(std::move(request));
  }
  requests.push_back(guided(scripted_request(scripted_prompt(kPromptLen), 40), OutputFormat::kRegex,
                            "(cat|category)( is [a-z]{2,4})*!"));
  requests.push_back(
      guided(scripted_request(scripted_prompt(kPromptLen), 40), OutputFormat::kJsonObject, ""));
  requests.push_back(scripted_request(scripted_prompt(kPromptLen), 20));
  requests[1].sampling.repetition_penalty = 1.3f;
  requests[2].ignore_eos = false;
  std::vector<Output> expected;
  for (int drafter = 0; drafter < 4; ++drafter) {
    EngineOptions options = scripted_options();
    options.max_running_requests = options.slot_count = 4;
    options.speculative.steps = 4;
    options.retract_every = drafter == 3 ? 5 : 0;
    options.late_results = drafter == 2;
    ScriptedLoop scripted(options, prose);
    if (drafter == 1)
      scripted.use_digest_drafter([](std::span<const int32_t>) { return byte_token('"'); });
    if (drafter == 2) scripted.use_model_drafter(prose);
    if (drafter == 3) scripted.use_drafter(std::make_unique<NgramDrafter>(1, 4));
    scripted.use_tokenizer(byte_tokenizer());
    const std::vector<Output> outputs = serve(scripted.loop(), requests);
    if (drafter == 0) expected = outputs;
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(fmt::format("drafter {} request {}", drafter, i));
      EXPECT_EQ(outputs[i].ids, expected[i].ids);
      EXPECT_EQ(outputs[i].stats.finish, expected[i].stats.finish);
      EXPECT_EQ(outputs[i].endings, 1);
      if (i >= 10 || outputs[i].stats.finish != FinishReason::kComplete) continue;
      const OrderedJson schema = OrderedJson::parse(requests[i].output_pattern);
      const OrderedJson value = OrderedJson::parse(outputs[i].text, nullptr, false);
      EXPECT_TRUE(!value.is_discarded() && SchemaValidator(schema).valid(value)) << outputs[i].text;
    }
    expect_idle(scripted.loop());
  }
  const auto complete = std::count_if(expected.begin(), expected.end(), [](const Output& output) {
    return output.stats.finish == FinishReason::kComplete;
  });
  EXPECT_GE(complete, 8);
}

// Checklist 72: free up to a marker, bound after it, wherever in a run of drafts the marker falls;
// what is drafted after it is as free as before.
TEST(GrammarSpeculation, TheMarkerAtEveryDraftPosition) {
  const int32_t marker = *byte_tokenizer().find_control("<｜tool▁calls▁begin｜>");
  const GrammarPtr grammar = *compile_grammar([&](GrammarBuilder& builder, int32_t from) {
    const GrammarBuilder::Rule free = builder.rule();
    builder.symbols(free.start, 0, control_symbol(marker) - 1, free.end);
    from = builder.repeat(from, free, 0, -1);
    from = builder.symbol(from, control_symbol(marker), control_symbol(marker));
    return builder.one_of(from, {"12x", "123456"});
  });
  constexpr size_t kPromptLen = 5;
  for (size_t before = 0; before < 9; ++before) {
    std::vector<int32_t> wanted(before, byte_token('t'));
    wanted.push_back(marker);
    const Script script = [&](std::span<const int32_t> context, std::span<float> logits) {
      const size_t at = context.size() - kPromptLen;
      for (size_t id = 0; id < logits.size(); ++id) logits[id] = static_cast<float>(id % 7);
      logits[at < wanted.size() ? wanted[at] : byte_token('t')] = 100.0f;
      logits[byte_token('3')] = 50.0f;
    };
    const NextToken guess = [&](std::span<const int32_t> context) {
      const size_t at = context.size() - kPromptLen;
      return at < wanted.size() ? wanted[at] : byte_token('t');
    };
    for (const int steps : {0, 1, 2, 3, 7}) {
      SCOPED_TRACE(fmt::format("before {} steps {}", before, steps));
      EngineOptions options = scripted_options();
      options.speculative.steps = steps;
      ScriptedLoop scripted(options, script);
      if (steps > 0) scripted.use_digest_drafter(guess);
      scripted.use_tokenizer(byte_tokenizer());
      Request request = scripted_request(scripted_prompt(kPromptLen), 60);
      request.grammar = grammar;
      request.marker_ids = {marker};
      const Output output = serve(scripted.loop(), {request})[0];
      EXPECT_EQ(output.text, std::string(before, 't') + "123456");
      EXPECT_EQ(output.ids[before], marker);
      EXPECT_EQ(output.stats.finish, FinishReason::kComplete);
    }
  }
}

TEST(GrammarSpeculation, TheEndTokenOnlyWhereItMayEnd) {
  const auto wants_end = [](std::span<const int32_t> context, std::span<float> logits) {
    logits[kByteTokenizerEos] = 100.0f;
    logits[byte_token(context.size() % 2 == 0 ? 'a' : 'b')] = 50.0f;
  };
  for (const bool ignore : {false, true}) {
    ScriptedLoop scripted(scripted_options(), wants_end);
    scripted.use_tokenizer(byte_tokenizer());
    Request request =
        guided(scripted_request(scripted_prompt(4), 9), OutputFormat::kRegex, "(ab){2,}");
    request.ignore_eos = ignore;
    const Output output = serve(scripted.loop(), {request})[0];
    EXPECT_EQ(output.text, ignore ? "ababababa" : "abab");
    EXPECT_EQ(output.stats.finish, ignore ? FinishReason::kLength : FinishReason::kEndToken);
  }
}

TEST(GrammarSpeculation, RefusedAtOnce) {
  ScriptedLoop scripted(scripted_options(), wants("", 4));
  const Request plain = scripted_request(scripted_prompt(4), 9);
  const Request request = guided(plain, OutputFormat::kRegex, "a*");
  EXPECT_FALSE(scripted.loop().prepare(request)) << "there is no tokenizer";
  scripted.use_tokenizer(byte_tokenizer());
  EngineLoop& loop = scripted.restart(scripted_options());
  EXPECT_TRUE(loop.prepare(request));
  Request with_minimum = request;
  with_minimum.min_tokens = 2;
  EXPECT_EQ(loop.prepare(with_minimum).error().param, "min_tokens");
  const auto bad = loop.prepare(guided(plain, OutputFormat::kJsonSchema, R"({"not":{}})"));
  EXPECT_EQ(bad.error().param, "json_schema");
  EXPECT_NE(bad.error().message.find("\"not\""), std::string::npos);
  EXPECT_EQ(loop.prepare(guided(plain, OutputFormat::kRegex, "a**")).error().param, "regex");
}

// A grammar that explodes fails its own request; the one beside it is as ever.
TEST(GrammarSpeculation, AnExplodingGrammarFailsAlone) {
  const Script coin = [](std::span<const int32_t> context, std::span<float> logits) {
    logits[byte_token(hashed_token(context) % 2 == 0 ? 'a' : 'b')] = 100.0f;
    logits[byte_token('x')] = 50.0f;
  };
  EngineOptions options = scripted_options();
  options.context_length = 512;
  options.max_total_tokens = 2048;
  ScriptedLoop scripted(options, coin);
  scripted.use_tokenizer(byte_tokenizer());
  std::string pattern = "d";
  for (int i = 0; i < 20; ++i) pattern += fmt::format("|(a|b){{0,900}}a(a|b){{{}}}c", 600 + i);
  const Request beside = scripted_request(scripted_prompt(4), 60);
  const std::vector<Output> outputs = serve(
      scripted.loop(),
      {guided(scripted_request(scripted_prompt(4), 400), OutputFormat::kRegex, pattern), beside});
  EXPECT_EQ(outputs[0].stats.finish, FinishReason::kFailed);
  EXPECT_EQ(outputs[1].ids, serve(scripted.loop(), {beside})[0].ids);
  expect_idle(scripted.loop());
}

}  // namespace
}  // namespace foresail
