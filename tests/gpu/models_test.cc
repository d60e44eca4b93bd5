// Whole models on the GPU: golden checkpoints, the trained model beside the CPU, and speculation.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"
#include "engine/batch_bench.h"
#include "engine/engine_harness.h"
#include "engine/evaluation.h"
#include "golden_files.h"
#include "gpu_fixture.h"
#include "kernels/cuda/cuda_kernels.h"

namespace foresail {
namespace {

constexpr double kBf16Divergence = 1e-3;  // KL of the next-token distribution, as golden_test.cc
constexpr float kClearMargin = 0.05f;     // of the two best logits in f32

const char* const kTargets[] = {"g01_v3_yarn",        "g02_moonlight", "g03_kimi_k2",
                                "g04_v2_lite",        "g05_v2_groups", "g06_glm47_flash",
                                "g07_full_head_dims", "g08_youtu",     "g09_mistral4",
                                "g10_minicpm3",       "tales"};

std::string path_of(const std::string& name) {
  return name == "tales" ? model_path("tales") : golden_dir(name).string();
}

ModelOptions options_for(const std::string& name, const std::string& device,
                         const std::string& kv_dtype) {
  ModelOptions options;
  options.model_path = path_of(name);
  options.device = device;
  options.kv_cache_dtype = kv_dtype;
  return options;
}

// Brief: prompts of few, some and many tokens, and of one model one that takes two passes.
bool is_run(const std::string& name, int prompt) {
  if (name == "tales") return full_or_brief(true, prompt == 0);
  return full_or_brief(
      true, prompt == 1 || prompt == 2 || prompt == 5 || (prompt == 6 && name == kTargets[0]));
}

class GpuGoldens : public testing::TestWithParam<std::tuple<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Paths, GpuGoldens,
                         testing::Combine(testing::Values("absorbed", "expanded"),
                                          testing::ValuesIn(kTargets)),
                         [](const auto& test) {
                           return fmt::format("{}_{}", std::get<0>(test.param),
                                              std::get<1>(test.param));
                         });

TEST_P(GpuGoldens, DistributionsWithF32Cache) {
  const std::string path = std::get<0>(GetParam()), name = std::get<1>(GetParam());
  const GoldenFile golden(golden_dir(name) / "golden.safetensors");
  LoadedModel model(options_for(name, "cuda", "f32"));
  const int64_t vocab = model.config().vocab_size;
  int prompt = 0;
  for (; golden.has("p" + std::to_string(prompt) + ".input_ids"); ++prompt) {
    if (!is_run(name, prompt)) continue;
    const std::string key = "p" + std::to_string(prompt) + ".";
    const auto ours = evaluate_logits(model, golden.tokens(key + "input_ids"), path);
    const std::vector<float> theirs = golden.floats(key + "logits");
    EXPECT_LE(divergence(ours[0].values.data() + ours[0].values.size() - vocab,
                         theirs.data() + theirs.size() - vocab, vocab),
              kBf16Divergence)
        << "prompt " << prompt;
  }
  EXPECT_GE(prompt, name == "tales" ? 2 : 3);
}

class GpuGoldensCache : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Targets, GpuGoldensCache, testing::ValuesIn(kTargets),
                         [](const auto& test) { return std::string(test.param); });

// The cache as it is served. Its rounding moves single rows far where two experts are nearly as
// good (up to a divergence of 2.4 between the CPU's own bf16 and f32 caches on these random
// models), so the middle row is what is compared.
TEST_P(GpuGoldensCache, DistributionsEqualTheCpusInBf16) {
  const std::string name = GetParam();
  const GoldenFile golden(golden_dir(name) / "golden.safetensors");
  LoadedModel gpu(options_for(name, "cuda", "auto"));
  LoadedModel cpu(options_for(name, "cpu", "auto"));
  const int64_t vocab = gpu.config().vocab_size;
  for (int prompt = 0; golden.has("p" + std::to_string(prompt) + ".input_ids"); ++prompt) {
    if (!is_run(name, prompt)) continue;
    const auto ids = golden.tokens("p" + std::to_string(prompt) + ".input_ids");
    const auto ours = evaluate_logits(gpu, ids, "auto");
    const auto theirs = evaluate_logits(cpu, ids, "absorbed");
    std::vector<double> rows;
    for (size_t row = 0; row < ids.size(); ++row)
      rows.push_back(divergence(ours[0].values.data() + row * vocab,
                                theirs[0].values.data() + row * vocab, vocab));
    std::nth_element(rows.begin(), rows.begin() + rows.size() / 2, rows.end());
    EXPECT_LE(rows[rows.size() / 2], kBf16Divergence) << "prompt " << prompt;
  }
}

struct Chain {
  const char* name;
  SpeculativeAlgorithm algorithm;
  const char* golden;
  std::string draft;
};
class GpuModelsChain : public testing::TestWithParam<Chain> {};
INSTANTIATE_TEST_SUITE_P(
    Heads, GpuModelsChain,
    testing::Values(Chain{"mtp", SpeculativeAlgorithm::kMtp, "g13_v3_mtp", ""},
                    Chain{"eagle3_llama", SpeculativeAlgorithm::kEagle3, "g14_eagle3_llama",
                          (golden_dir("g14_eagle3_llama") / "draft").string()},
                    Chain{"eagle3_mla", SpeculativeAlgorithm::kEagle3, "g15_eagle3_mla",
                          (golden_dir("g15_eagle3_mla") / "draft").string()},
                    Chain{"tales_mtp", SpeculativeAlgorithm::kMtp, "tales", ""},
                    Chain{"tales_eagle3", SpeculativeAlgorithm::kEagle3, "tales",
                          model_path("tales-eagle3")}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(GpuModelsChain, DraftsEqualTheCpus) {
  const std::string name = GetParam().golden;
  const GoldenFile golden(golden_dir(name) / "golden.safetensors");
  ModelOptions options = options_for(name, "cuda", "f32");
  options.speculative = {
      .algorithm = GetParam().algorithm, .draft_model_path = GetParam().draft, .steps = 3};
  LoadedModel gpu(options);
  options.device = "cpu";
  LoadedModel cpu(options);
  int rows_compared = 0;
  for (int prompt = 0; golden.has("p" + std::to_string(prompt) + ".input_ids"); ++prompt) {
    const auto ids = golden.tokens("p" + std::to_string(prompt) + ".input_ids");
    if (full_or_brief(false, ids.size() > 64)) continue;
    const auto ours = evaluate_drafts(gpu, ids, 3);
    const auto theirs = evaluate_drafts(cpu, ids, 3);
    const int64_t vocab = ours[0].shape[1];
    // A step reads the token drafted before it, and the first one the token drawn.
    if (ours[3].ids != theirs[3].ids) continue;
    for (int step = 0; step < 3; ++step) {
      EXPECT_LE(divergence(ours[0].values.data() + step * vocab,
                           theirs[0].values.data() + step * vocab, vocab),
                kBf16Divergence)
          << "prompt " << prompt << " step " << step;
      ++rows_compared;
      if (ours[2].ids[step] != theirs[2].ids[step]) break;
    }
  }
  EXPECT_GE(rows_compared, full_or_brief(4, 1));
}

const char* const kPrompts[] = {
    "Once upon a time there was a little",
    "The old king said to his daughter",
    "In the middle of the forest stood a house, and in the house lived",
    "\"Where are you going?\" asked the wolf.",
    "A poor miller had three sons, and when he died",
};

std::vector<Request> tales_requests(int64_t max_tokens) {
  const auto tokenizer = Tokenizer::load(model_path("tales"));
  std::vector<Request> requests;
  for (const char* prompt : std::span(kPrompts).first(full_or_brief(std::size(kPrompts), 2))) {
    Request& request = requests.emplace_back();
    request.input_ids = tokenizer->encode(prompt, {.add_bos = true});
    shorten_if_brief(request.input_ids);
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0.0f;
  }
  return requests;
}

// Of the two best logits in f32 on the CPU, where token `at` of the text is decided.
struct Decision {
  int32_t best = 0;
  float margin = 0.0f;
};

std::vector<Decision> decisions(const std::vector<int32_t>& text) {
  ModelOptions options = options_for("tales", "cpu", "auto");
  options.dtype = "f32";
  static LoadedModel model(options);
  const auto logits = evaluate_logits(model, text, "absorbed");
  const int64_t vocab = model.config().vocab_size;
  std::vector<Decision> result;
  for (size_t row = 0; row < text.size(); ++row) {
    const float* values = logits[0].values.data() + row * vocab;
    const auto best = static_cast<int32_t>(std::max_element(values, values + vocab) - values);
    float second = -INFINITY;
    for (int32_t i = 0; i < vocab; ++i)
      if (i != best) second = std::max(second, values[i]);
    result.push_back({best, values[best] - second});
  }
  return result;
}

TEST(GpuModels, GreedyTokensOfTalesEqualTheCpusWhereTheMarginIsClear) {
  LoadedModel cpu(options_for("tales", "cpu", "auto"));
  const std::vector<Request> requests = tales_requests(full_or_brief(96, 32));
  const std::vector<Output> texts = plain_outputs(cpu, requests);
  for (const bool deterministic : {false, true}) {
    ModelOptions options = options_for("tales", "cuda", "auto");
    options.deterministic = deterministic;
    LoadedModel gpu(options);
    const int64_t vocab = gpu.config().vocab_size;
    int clear = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> text = requests[i].input_ids;
      text.insert(text.end(), texts[i].ids.begin(), texts[i].ids.end());
      const std::vector<Decision> wanted = decisions(text);
      const auto logits = evaluate_logits(gpu, text, "auto");
      for (size_t row = 0; row < text.size(); ++row) {
        if (wanted[row].margin <= kClearMargin) continue;
        const float* values = logits[0].values.data() + row * vocab;
        EXPECT_EQ(std::max_element(values, values + vocab) - values, wanted[row].best)
            << "text " << i << " position " << row << " margin " << wanted[row].margin;
        ++clear;
      }
    }
    EXPECT_GT(clear, full_or_brief(400, 25));
  }
}

struct Speculation {
  const char* name;
  SpeculativeAlgorithm algorithm;
  int page_size;
  double least_accept_length;
};
class GpuModelsSpeculation : public testing::TestWithParam<Speculation> {};
INSTANTIATE_TEST_SUITE_P(
    Drafters, GpuModelsSpeculation,
    testing::Values(Speculation{"mtp", SpeculativeAlgorithm::kMtp, 16, 1.3},
                    Speculation{"eagle3", SpeculativeAlgorithm::kEagle3, 64, 1.3},
                    Speculation{"ngram", SpeculativeAlgorithm::kNgram, 32, 1.0}),
    [](const auto& test) { return std::string(test.param.name); });

EngineOptions serving_options(bool deterministic) {
  EngineOptions options;
  options.model_path = model_path("tales");
  options.device = "cuda";
  options.deterministic = deterministic;
  options.attention_path = "absorbed";  // in plain_outputs too
  return options;
}

// Requests at several temperatures through the engine, all at once, with `speculation`.
std::vector<Output> speculate(const Speculation& speculation, bool deterministic,
                              const std::vector<Request>& requests, bool launch_ahead = true) {
  EngineOptions options = serving_options(deterministic);
  options.launch_ahead = launch_ahead;
  options.page_size = speculation.page_size;
  options.slot_count = options.max_running_requests = 6;
  options.speculative = {.algorithm = speculation.algorithm,
                         .draft_model_path = model_path("tales-eagle3"),
                         .steps = full_or_brief(4, 2),
                         .adaptive = false};
  const auto tokenizer = Tokenizer::load(options.model_path);
  LoadedModel model(options);
  EngineLoop loop(model, tokenizer.get(), options);
  std::vector<Output> outputs = serve(loop, requests);
  const EngineStats stats = loop.stats();
  EXPECT_GE(1.0 + static_cast<double>(stats.accepted) / static_cast<double>(stats.verify_passes),
            full_or_brief(speculation.least_accept_length, 1.0));
  return outputs;
}

TEST_P(GpuModelsSpeculation, ChangesNoTokenWhenDeterministic) {
  std::vector<Request> requests = tales_requests(full_or_brief(48, 3));
  for (size_t i = requests.size(); i-- > 0;) {
    Request drawn = requests[i];
    drawn.sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = i + 1};
    requests.push_back(drawn);
  }
  LoadedModel plain(serving_options(true));
  const std::vector<Output> expected = plain_outputs(plain, requests);
  const std::vector<Output> outputs = speculate(GetParam(), true, requests);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(outputs[i].ids, expected[i].ids) << "request " << i;
}

// The same with penalties, biases, minimum lengths and log probabilities, where the GPU chooses all
// tokens and drafts itself, queued behind each other; and with the host choosing, for which more
// log probabilities are asked than kernels rank: equal drafts and log probabilities too.
TEST_P(GpuModelsSpeculation, TokensAndDraftsChosenOnTheGpuAreThoseChosenOnTheHost) {
  std::vector<Request> requests = tales_requests(full_or_brief(48, 3));
  for (size_t i = requests.size(); i-- > 0;) {
    Request drawn = requests[i];
    drawn.sampling = {.temperature = 0.8f, .seed = i + 1};
    if (i % 3 == 0) drawn.sampling.top_p = 0.9f;
    if (i % 4 == 1) drawn.sampling.top_k = 20;
    if (i % 5 == 2) drawn.sampling.min_p = 0.05f;
    drawn.max_tokens = full_or_brief<int64_t>(30 + 5 * static_cast<int64_t>(i), 3);
    requests.push_back(drawn);
  }
  add_terms(requests);
  for (Request& request : requests)
    if (request.top_logprobs) request.top_logprobs = *request.top_logprobs % kMostRankedTokens;
  LoadedModel plain(serving_options(true));
  const std::vector<Output> expected = plain_outputs(plain, requests);
  // What is launched ahead is planned ahead, with fewer drafts near the ends.
  const std::vector<Output> outputs = speculate(GetParam(), true, requests, false);
  std::vector<Request> on_host = requests;
  for (Request& request : on_host) request.top_logprobs = kMostRankedTokens + 1;
  const std::vector<Output> host = speculate(GetParam(), true, on_host);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(fmt::format("request {}", i));
    EXPECT_EQ(outputs[i].ids, expected[i].ids);
    EXPECT_EQ(host[i].ids, expected[i].ids);
    EXPECT_EQ(outputs[i].stats.drafted_at, host[i].stats.drafted_at);
    EXPECT_EQ(outputs[i].stats.accepted_at, host[i].stats.accepted_at);
    expect_same_logprobs(outputs[i], expected[i]);
    ASSERT_EQ(host[i].logprobs.size(), host[i].ids.size());
    for (size_t at = 0; at < outputs[i].logprobs.size(); ++at) {
      const TokenLogprobs& ours = outputs[i].logprobs[at];
      const TokenLogprobs& theirs = host[i].logprobs[at];
      EXPECT_EQ(ours.chosen, theirs.chosen) << at;
      EXPECT_TRUE(std::equal(ours.top.begin(), ours.top.end(), theirs.top.begin())) << at;
    }
  }
}

// Under grammars, whose masks come to the GPU while the pass runs, and with the host choosing.
TEST_P(GpuModelsSpeculation, TokensUnderAGrammarAreThoseChosenOnTheHost) {
  std::vector<Request> requests = tales_requests(full_or_brief(60, 4));
  const std::pair<OutputFormat, const char*> formats[] = {
      {OutputFormat::kRegex, "[a-z]+( [a-z]+){3,9}\\."},
      {OutputFormat::kJsonObject, ""},
      {OutputFormat::kRegex, "(The|A) (cat|dog|old man)( [a-z]+)*"}};
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 4 == 3) continue;  // one beside them is free
    requests[i].output_format = formats[i % 4].first;
    requests[i].output_pattern = formats[i % 4].second;
    requests[i].sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i + 1};
  }
  Speculation any = GetParam();
  any.least_accept_length = 1.0;
  std::vector<Request> on_host = requests;
  for (Request& request : on_host) request.top_logprobs = kMostRankedTokens + 1;
  const std::vector<Output> outputs = speculate(any, true, requests);
  const std::vector<Output> host = speculate(any, true, on_host);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(outputs[i].ids, host[i].ids) << "request " << i;
    EXPECT_EQ(outputs[i].stats.finish, host[i].stats.finish);
  }
}

// With the fastest attention a token may differ, but only where two are nearly as likely.
TEST_P(GpuModelsSpeculation, FlipsNearTiesOnly) {
  const std::vector<Request> requests = tales_requests(full_or_brief(64, 4));
  LoadedModel plain(serving_options(false));
  const std::vector<Output> expected = plain_outputs(plain, requests);
  const std::vector<Output> outputs = speculate(GetParam(), false, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto [ours, theirs] = std::mismatch(outputs[i].ids.begin(), outputs[i].ids.end(),
                                              expected[i].ids.begin(), expected[i].ids.end());
    if (ours == outputs[i].ids.end() && theirs == expected[i].ids.end()) continue;
    std::vector<int32_t> text = requests[i].input_ids;
    text.insert(text.end(), outputs[i].ids.begin(), ours);
    const Decision decision = decisions(text).back();
    EXPECT_LE(decision.margin, kClearMargin)
        << "request " << i << " token " << ours - outputs[i].ids.begin();
  }
}

class GpuModelsIteration : public testing::TestWithParam<SpeculativeAlgorithm> {};
INSTANTIATE_TEST_SUITE_P(Drafters, GpuModelsIteration, testing::ValuesIn(kDrafters), drafter_name);

// Once an iteration, for its outcome: drafting adds no wait.
TEST_P(GpuModelsIteration, WaitsOnce) {
  ModelOptions options = serving_options(false);
  const int batch = full_or_brief(4, 2);
  options.slot_count = 4;
  options.context_length = 320;
  options.max_total_tokens = 4 * 384;
  options.speculative = {.algorithm = GetParam(),
                         .draft_model_path = model_path("tales-eagle3"),
                         .steps = full_or_brief(4, 2),
                         .adaptive = false};
  LoadedModel model(options);
  BatchBench bench(model,
                   {.batch_size = batch,
                    .context_len = full_or_brief(100, 4),
                    .output_len = full_or_brief(200, 4),
                    .draft_len = model.drafter() == nullptr ? 0 : options.speculative.steps});
  bench.run();
  const BatchBenchResult result = bench.run();
  const auto iterations = static_cast<int64_t>(result.iteration_s.size());
  // The first proposals follow prefill, a step at a time.
  EXPECT_LE(result.decode_device.waits, iterations + 12);
  EXPECT_LE(result.decode_device.download_bytes, iterations * 200 + (4 << 20));
}

TEST(GpuModels, RefusesWhatItCannotRun) {
  ModelOptions options = options_for("g01_v3_yarn", "cuda", "auto");
  options.dtype = "f32";
  EXPECT_THROW(LoadedModel{options}, Error);
  options.dtype = "bf16";
  options.attention_backend = "reference";
  EXPECT_THROW(LoadedModel{options}, Error);
  options.attention_backend = "paged";
  options.max_total_tokens = int64_t{1} << 40;
  EXPECT_THROW(LoadedModel{options}, Error);
}

// Keys given one by one, and eight-bit codes, go through the general kernel.
TEST(GpuModels, OtherCachesAndBackendsRun) {
  const std::vector<Request> requests = tales_requests(full_or_brief(24, 3));
  LoadedModel paged(serving_options(true));
  const std::vector<Output> expected = plain_outputs(paged, requests);
  ModelOptions options = serving_options(true);
  options.attention_backend = "indexed";
  LoadedModel indexed(options);
  const std::vector<Output> outputs = plain_outputs(indexed, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(outputs[i].ids, expected[i].ids) << i;
  options.attention_backend = "paged";
  options.kv_cache_dtype = "fp8_e4m3";
  LoadedModel coded(options);
  for (const Output& output : plain_outputs(coded, requests))
    EXPECT_EQ(output.ids.size(), full_or_brief(24u, 3u));
}

}  // namespace
}  // namespace foresail
