// Logits, states, greedy continuations and drafts of tiny checkpoints against an independent
// implementation (tests/goldens/README.md), for every instruction set this machine has.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/evaluation.h"
#include "engine/text_generator.h"
#include "golden_files.h"
#include "kernels/cpu/cpu_kernels.h"

namespace foresail {
namespace {

constexpr double kF32Tolerance = 2e-4;    // of the largest |logit|, tests/goldens/README.md
constexpr double kBf16Divergence = 1e-3;  // KL of the next-token distribution

const char* const kTargets[] = {"g01_v3_yarn",        "g02_moonlight", "g03_kimi_k2",
                                "g04_v2_lite",        "g05_v2_groups", "g06_glm47_flash",
                                "g07_full_head_dims", "g08_youtu",     "g09_mistral4",
                                "g10_minicpm3",       "tales"};

ModelOptions options_for(const std::string& name, const std::string& dtype,
                         const std::string& isa) {
  ModelOptions options;
  options.model_path = name == "tales"
                           ? (std::filesystem::path(FORESAIL_SOURCE_DIR) / "models/tales").string()
                           : golden_dir(name).string();
  options.dtype = dtype;
  options.cpu_isa = isa;
  options.threads = 2;
  if (isa == "ref") {
    options.device = "ref";
    options.cpu_isa = "auto";
  }
  return options;
}

class Golden : public testing::TestWithParam<std::string> {};

std::vector<std::string> sets_to_test() {
  std::vector<std::string> sets{"ref"};
  for (const std::string_view isa : available_isas()) sets.emplace_back(isa);
  return sets;
}

INSTANTIATE_TEST_SUITE_P(KernelSets, Golden, testing::ValuesIn(sets_to_test()),
                         [](const auto& set) { return set.param; });

TEST_P(Golden, LogitsAndStatesInF32OnBothPaths) {
  for (const std::string name : kTargets) {
    const GoldenFile golden(golden_dir(name) / "golden.safetensors");
    LoadedModel model(options_for(name, "f32", GetParam()));
    for (const std::string path : {"absorbed", "expanded"}) {
      int prompt = 0;
      for (; golden.has("p" + std::to_string(prompt) + ".input_ids"); ++prompt) {
        const std::string key = "p" + std::to_string(prompt) + ".";
        const std::vector<int32_t> ids = golden.tokens(key + "input_ids");
        if (GetParam() == "ref" && (ids.size() > 80 || name == "tales"))
          continue;  // the oracle is slow
        const std::vector<NamedTensor> ours = evaluate_logits(model, ids, path);
        const std::vector<float> theirs = golden.floats(key + "logits");
        const float* tail = ours[0].values.data() + ours[0].values.size() - theirs.size();
        EXPECT_LE(relative_error(tail, theirs), kF32Tolerance)
            << name << " " << path << " prompt " << prompt;
        for (size_t layer = 0; golden.has(key + "hidden." + std::to_string(layer)); ++layer)
          EXPECT_LE(relative_error(ours[layer + 1].values.data(),
                                   golden.floats(key + "hidden." + std::to_string(layer))),
                    kF32Tolerance)
              << name << " " << path << " prompt " << prompt << " layer " << layer;
      }
      EXPECT_GE(prompt, name == "tales" ? 2 : 3) << name;
    }
  }
}

TEST_P(Golden, NextTokenDistributionInBf16) {
  if (GetParam() == "ref") return;  // bf16 is what the fast sets round to; ref has nothing to add
  for (const std::string name : kTargets) {
    const GoldenFile golden(golden_dir(name) / "golden.safetensors");
    ModelOptions options = options_for(name, "bf16", GetParam());
    options.kv_cache_dtype = "f32";  // as `foresail eval`: the model, not the rounding of its cache
    LoadedModel model(options);
    for (const std::string path : {"absorbed", "expanded"}) {
      for (int prompt = 0; golden.has("p" + std::to_string(prompt) + ".input_ids"); ++prompt) {
        const std::string key = "p" + std::to_string(prompt) + ".";
        const std::vector<NamedTensor> ours =
            evaluate_logits(model, golden.tokens(key + "input_ids"), path);
        const std::vector<float> theirs = golden.floats(key + "logits");
        const int64_t vocab = model.config().vocab_size;
        const double kl = divergence(ours[0].values.data() + ours[0].values.size() - vocab,
                                     theirs.data() + theirs.size() - vocab, vocab);
        EXPECT_LE(kl, kBf16Divergence) << name << " " << path << " prompt " << prompt;
      }
    }
  }
}

TEST_P(Golden, GreedyContinuationInF32) {
  for (const std::string name : kTargets) {
    if (GetParam() == "ref" && name == "tales") continue;
    const GoldenFile golden(golden_dir(name) / "golden.safetensors");
    LoadedModel model(options_for(name, "f32", GetParam()));
    TextGenerator generator(model, nullptr);
    for (int prompt = 0; golden.has("p" + std::to_string(prompt) + ".greedy"); ++prompt) {
      const std::string key = "p" + std::to_string(prompt) + ".";
      const std::vector<int32_t> theirs = golden.tokens(key + "greedy");
      const std::vector<int32_t> ids = golden.tokens(key + "input_ids");
      if (GetParam() == "ref" && ids.size() > 80) continue;
      Request request;
      request.max_tokens = static_cast<int64_t>(theirs.size());
      request.ignore_eos = true;
      request.sampling.temperature = 0.0f;
      std::vector<int32_t> ours;
      generator.generate(ids, request, [&](const Event& event) { ours.push_back(event.token); });
      EXPECT_EQ(ours, theirs) << name << " prompt " << prompt;
    }
  }
}

struct DraftGolden {
  std::string name, prefix;
  SpeculativeAlgorithm algorithm;
  std::string draft_path;
};

void compare_drafts(const DraftGolden& item, const std::string& isa) {
  ModelOptions options = options_for(item.name, "f32", isa);
  options.speculative = {
      .algorithm = item.algorithm, .draft_model_path = item.draft_path, .steps = 3};
  const GoldenFile golden(golden_dir(item.name) / "golden.safetensors");
  LoadedModel model(options);
  for (int prompt = 0; golden.has("p" + std::to_string(prompt) + ".input_ids"); ++prompt) {
    const std::string key = "p" + std::to_string(prompt) + ".";
    const std::string draft_key = key + item.prefix;
    const std::vector<NamedTensor> ours =
        evaluate_drafts(model, golden.tokens(key + "input_ids"), 3);
    EXPECT_LE(relative_error(ours[0].values.data(), golden.floats(draft_key + "draft_logits")),
              kF32Tolerance)
        << item.name << draft_key;
    EXPECT_LE(relative_error(ours[1].values.data(), golden.floats(draft_key + "draft_state")),
              kF32Tolerance)
        << item.name << draft_key;
    EXPECT_EQ(ours[2].ids, golden.ids(draft_key + "drafts")) << item.name << draft_key;
    EXPECT_EQ(ours[3].ids, golden.ids(key + "next")) << item.name << draft_key;
  }
}

TEST_P(Golden, ThreeChainedDrafts) {
  const std::string eagle =
      (std::filesystem::path(FORESAIL_SOURCE_DIR) / "models/tales-eagle3").string();
  compare_drafts({"g13_v3_mtp", "", SpeculativeAlgorithm::kMtp, ""}, GetParam());
  compare_drafts({"g14_eagle3_llama", "", SpeculativeAlgorithm::kEagle3,
                  (golden_dir("g14_eagle3_llama") / "draft").string()},
                 GetParam());
  compare_drafts({"g15_eagle3_mla", "", SpeculativeAlgorithm::kEagle3,
                  (golden_dir("g15_eagle3_mla") / "draft").string()},
                 GetParam());
  if (GetParam() == "ref") return;
  compare_drafts({"tales", "mtp.", SpeculativeAlgorithm::kMtp, ""}, GetParam());
  compare_drafts({"tales", "eagle3.", SpeculativeAlgorithm::kEagle3, eagle}, GetParam());
}

}  // namespace
}  // namespace foresail
