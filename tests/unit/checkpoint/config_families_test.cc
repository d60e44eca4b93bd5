// Every family's config becomes the numbers its model card and the literature give.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/config_writer.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_list.h"
#include "opt_in_test.h"
#include "unit/checkpoint/temp_folder.h"

namespace foresail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::filesystem::path kData =
    std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/data/checkpoint/configs";

ModelConfig parse_file(const std::string& name) {
  const auto path = kData / (name + ".json");
  return parse_model_config(read_text_file(path, 1 << 20), path.string());
}

struct Expected {
  const char* name;
  int64_t layers, hidden, heads, q_lora, kv_lora, nope, rope, value;
  int64_t experts, top_k, groups, top_groups, dense_layers, shared, inner, intermediate, vocab;
  double routed_scale;
  bool normalize;
  double eps;
  double softmax_scale;
  int64_t kv_bytes_per_token;  // bf16
  double billions;             // parameters without MTP
};

// clang-format off
constexpr Expected kExpected[] = {
  {"deepseek_v2",      60, 5120, 128, 1536, 512, 128, 64, 128, 160, 6, 8, 3, 1, 2, 1536, 12288, 102400, 16.0, false, 1e-6, 0.1352337588, 69120, 235.7},
  {"deepseek_v2_lite", 27, 2048, 16, 0, 512, 128, 64, 128, 64, 6, 1, 1, 1, 2, 1408, 10944, 102400, 1.0, false, 1e-6, 0.1147213868, 31104, 15.7},
  {"deepseek_v3",      61, 7168, 128, 1536, 512, 128, 64, 128, 256, 8, 8, 4, 3, 1, 2048, 18432, 129280, 2.5, true, 1e-6, 0.1352337588, 70272, 671.0},
  {"kimi_k2",          61, 7168, 64, 1536, 512, 128, 64, 128, 384, 8, 1, 1, 1, 1, 2048, 18432, 163840, 2.827, true, 1e-6, 0.1308607980, 70272, 1026.5},
  {"kimi_k25",         61, 7168, 64, 1536, 512, 128, 64, 128, 384, 8, 1, 1, 1, 1, 2048, 18432, 163840, 2.827, true, 1e-5, 0.1446796258, 70272, 1026.5},
  {"kimi_k27",         61, 7168, 64, 1536, 512, 128, 64, 128, 384, 8, 1, 1, 1, 1, 2048, 18432, 163840, 2.827, true, 1e-5, 0.1446796258, 70272, 1026.5},
  {"moonlight",        27, 2048, 16, 0, 512, 128, 64, 128, 64, 6, 1, 1, 1, 2, 1408, 11264, 163840, 2.446, true, 1e-5, 0.0721687836, 31104, 16.0},
  {"kimi_vl",          27, 2048, 16, 0, 512, 128, 64, 128, 64, 6, 1, 1, 1, 2, 1408, 11264, 163840, 2.446, true, 1e-5, 0.0721687836, 31104, 16.0},
  {"glm47_flash",      47, 2048, 20, 768, 512, 192, 64, 256, 64, 4, 1, 1, 1, 1, 1536, 10240, 154880, 1.8, true, 1e-5, 0.0625, 54144, 29.9},
  {"joyai_flash",      40, 2048, 32, 1536, 512, 128, 64, 128, 256, 8, 1, 1, 1, 1, 768, 7168, 129280, 2.5, true, 1e-6, 0.0721687836, 46080, 48.9},
  {"gigachat3",        26, 1536, 32, 0, 512, 128, 64, 192, 64, 4, 1, 1, 1, 1, 1280, 8960, 128256, 2.5, true, 1e-6, 0.1352337588, 29952, 10.6},
  {"mistral_small4",   36, 4096, 32, 1024, 256, 64, 64, 128, 128, 4, 1, 1, 0, 1, 2048, 12288, 131072, 1.0, true, 1e-6, 0.1949694947, 23040, 119.0},
  {"minicpm3",         62, 2560, 40, 768, 256, 64, 32, 64, 0, 0, 1, 1, 62, 0, 0, 6400, 73448, 1.0, false, 1e-5, 0.1020620727, 35712, 4.07},
  {"youtu_llm",        32, 2048, 16, 1536, 512, 128, 64, 128, 0, 0, 1, 1, 32, 0, 0, 6144, 128256, 1.0, false, 1e-6, 0.0721687836, 36864, 1.96},
};
// clang-format on

class ConfigFamilies : public testing::TestWithParam<Expected> {};

TEST_P(ConfigFamilies, ParsesToTheKnownNumbers) {
  const Expected& e = GetParam();
  const ModelConfig c = parse_file(e.name);
  EXPECT_EQ(c.layer_count, e.layers);
  EXPECT_EQ(c.hidden_dim, e.hidden);
  EXPECT_EQ(c.head_count, e.heads);
  EXPECT_EQ(c.q_lora_rank, e.q_lora);
  EXPECT_EQ(c.kv_lora_rank, e.kv_lora);
  EXPECT_EQ(c.nope_dim, e.nope);
  EXPECT_EQ(c.rope_dim, e.rope);
  EXPECT_EQ(c.value_dim, e.value);
  EXPECT_EQ(c.moe.expert_count, e.experts);
  EXPECT_EQ(c.moe.top_k, e.top_k);
  EXPECT_EQ(c.moe.group_count, e.groups);
  EXPECT_EQ(c.moe.top_groups, e.top_groups);
  EXPECT_EQ(c.moe.shared_expert_count, e.shared);
  EXPECT_EQ(c.moe.inner_dim, e.inner);
  EXPECT_EQ(c.intermediate_dim, e.intermediate);
  EXPECT_EQ(c.vocab_size, e.vocab);
  EXPECT_EQ(c.moe.routed_scale, e.routed_scale);
  EXPECT_EQ(c.moe.normalize, e.normalize);
  EXPECT_EQ(c.rms_norm_eps, e.eps);
  EXPECT_EQ(c.latent_norm_eps, 1e-6);
  EXPECT_EQ(std::count(c.layer_is_moe.begin(), c.layer_is_moe.end(), false), e.dense_layers);
  EXPECT_NEAR(c.softmax_scale() / e.softmax_scale, 1.0, 1e-6);
  EXPECT_EQ(c.latent_row_dim() * 2 * c.layer_count, e.kv_bytes_per_token);
  EXPECT_NEAR(static_cast<double>(total_of(all_tensors(c)).parameter_count) / 1e9 / e.billions, 1.0,
              0.01);
}

INSTANTIATE_TEST_SUITE_P(All, ConfigFamilies, testing::ValuesIn(kExpected),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ConfigFamilies, GatesFollowTheFamily) {
  EXPECT_EQ(parse_file("deepseek_v3").moe.scoring, GateScoring::kSigmoid);
  EXPECT_EQ(parse_file("deepseek_v3").moe.method, GateMethod::kNoAuxTc);
  EXPECT_EQ(parse_file("deepseek_v2").moe.scoring, GateScoring::kSoftmax);
  EXPECT_EQ(parse_file("deepseek_v2").moe.method, GateMethod::kGroupLimitedGreedy);
  EXPECT_EQ(parse_file("deepseek_v2_lite").moe.method, GateMethod::kGreedy);
  EXPECT_EQ(parse_file("mistral_small4").moe.scoring, GateScoring::kSoftmax);
  EXPECT_EQ(parse_file("mistral_small4").moe.method, GateMethod::kGreedy);
  EXPECT_EQ(parse_file("glm47_flash").moe.scoring, GateScoring::kSigmoid);  // no scoring_func in it
}

TEST(ConfigFamilies, TokenIdsHeadsAndWrappers) {
  EXPECT_THAT(parse_file("minicpm3").eos_ids, ElementsAre(2, 73440));
  EXPECT_THAT(parse_file("glm47_flash").eos_ids, ElementsAre(154820, 154827, 154829));
  EXPECT_FALSE(parse_file("glm47_flash").bos_id);
  EXPECT_EQ(parse_file("deepseek_v3").bos_id, 0);
  EXPECT_TRUE(parse_file("youtu_llm").tied_embeddings);
  EXPECT_FALSE(parse_file("deepseek_v3").tied_embeddings);
  EXPECT_TRUE(parse_file("kimi_k25").wrapped);
  EXPECT_EQ(parse_file("kimi_k25").family, "kimi_k2");
  EXPECT_EQ(parse_file("mistral_small4").family, "mistral4");
  EXPECT_EQ(parse_file("joyai_flash").family, "joyai_llm_flash");
  EXPECT_EQ(parse_file("deepseek_v3").mtp_layer_count, 1);
}

TEST(ConfigFamilies, QuantizationIsNamed) {
  EXPECT_EQ(parse_file("deepseek_v3").quantization, "FP8 block");
  EXPECT_EQ(parse_file("kimi_k25").quantization, "INT4 packed (compressed-tensors)");
  EXPECT_EQ(parse_file("kimi_k27").quantization, "NVFP4 (modelopt)");
  EXPECT_EQ(parse_file("moonlight").quantization, "");
}

TEST(ConfigFamilies, MiniCpmScalesAndLongRope) {
  const ModelConfig c = parse_file("minicpm3");
  EXPECT_EQ(c.embedding_scale, 12.0);
  EXPECT_NEAR(c.residual_scale, 1.4 / std::sqrt(62.0), 1e-12);
  EXPECT_NEAR(c.logit_scale, 0.1, 1e-12);
  EXPECT_FALSE(c.rope.interleaved);
  EXPECT_EQ(c.rope_amplitude(1 << 20), 1.0);
  const double plain = std::pow(10000.0, -2.0 / 32.0);
  EXPECT_NEAR(c.inv_freq(32768)[1], plain / 1.56, 1e-9);  // short factors up to the original length
  EXPECT_NEAR(c.inv_freq(32769)[1], plain / 2.06, 1e-9);
}

TEST(ConfigFamilies, MistralScalesQueries) {
  const ModelConfig c = parse_file("mistral_small4");
  EXPECT_EQ(c.rope.query_scaling_beta, 0.1);
  EXPECT_EQ(c.rope.original_max_positions, 8192);
  EXPECT_EQ(c.rope_amplitude(1), 1.0);
}

struct RampBounds {
  const char* name;
  int64_t low, high;  // the last fully extrapolated and the first fully interpolated pair
};

TEST(ConfigFamilies, YarnRampsLieWhereTheyShould) {
  for (const RampBounds& bounds : {RampBounds{"deepseek_v3", 10, 23},
                                   {"deepseek_v2_lite", 10, 23},
                                   {"kimi_k2", 19, 20},
                                   {"kimi_k25", 8, 20},
                                   {"mistral_small4", 12, 25}}) {
    const ModelConfig c = parse_file(bounds.name);
    const auto frequencies = c.inv_freq(1);
    for (int64_t i = 0; i < static_cast<int64_t>(frequencies.size()); ++i) {
      const double extra = std::pow(c.rope.theta, -2.0 * static_cast<double>(i) / 64.0);
      const double ratio = frequencies[i] / extra;
      if (i <= bounds.low) {
        EXPECT_NEAR(ratio, 1.0, 1e-9) << bounds.name << " " << i;
      }
      if (i >= bounds.high) {
        EXPECT_NEAR(ratio * c.rope.factor, 1.0, 1e-9) << bounds.name << " " << i;
      }
      if (i > bounds.low && i < bounds.high) {
        EXPECT_LT(ratio, 1.0 - 1e-3) << bounds.name << " " << i;
      }
    }
  }
}

struct Refusal {
  const char* name;
  const char* feature;
};

class RefusedConfigs : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedConfigs, NameTheMissingFeatureInOneLine) {
  const std::string message = error_of([] { parse_file(GetParam().name); });
  EXPECT_THAT(message, HasSubstr(GetParam().feature));
  EXPECT_THAT(message, HasSubstr(GetParam().name));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(All, RefusedConfigs,
                         testing::Values(Refusal{"refused_deepseek_v32",
                                                 "DeepSeek sparse attention"},
                                         Refusal{"refused_glm5", "DeepSeek sparse attention"},
                                         Refusal{"refused_deepseek_v4", "hyper-connections"},
                                         Refusal{"refused_kimi_k3", "linear attention"},
                                         Refusal{"refused_kimi_linear", "linear attention"},
                                         Refusal{"refused_longcat", "zero experts"},
                                         Refusal{"refused_ling3", "linear attention"},
                                         Refusal{"refused_qwen3", "this family is not supported"}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(RefusedConfigs, GoldenFamiliesWithoutSupport) {
  const std::filesystem::path goldens =
      std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/goldens";
  EXPECT_THAT(error_of([&] { read_model_config(goldens / "g11_v32_dsa"); }),
              HasSubstr("DeepSeek sparse attention"));
  EXPECT_THAT(error_of([&] { read_model_config(goldens / "g12_longcat"); }),
              HasSubstr("zero experts"));
}

// Every parsed config writes back to a config.json that parses to the same model.
TEST(ConfigWriter, RoundTrips) {
  for (const Expected& e : kExpected) {
    const ModelConfig before = parse_file(e.name);
    const ModelConfig after = parse_model_config(to_config_json(before), "written");
    EXPECT_EQ(to_config_json(before), to_config_json(after)) << e.name;
    EXPECT_EQ(before.layer_is_moe, after.layer_is_moe) << e.name;
    EXPECT_EQ(before.inv_freq(1 << 20), after.inv_freq(1 << 20)) << e.name;
    EXPECT_EQ(before.softmax_scale(), after.softmax_scale()) << e.name;
    EXPECT_EQ(before.rope_amplitude(1), after.rope_amplitude(1)) << e.name;
    EXPECT_EQ(before.eos_ids, after.eos_ids) << e.name;
    EXPECT_EQ(before.rope.interleaved, after.rope.interleaved) << e.name;
    EXPECT_NEAR(before.residual_scale, after.residual_scale, 1e-15) << e.name;
    EXPECT_NEAR(before.logit_scale, after.logit_scale, 1e-15) << e.name;
  }
}

// A folder of released config.json files, each named OWNER--MODEL.json: set FORESAIL_CONFIGS_DIR.
void check_released_configs(const std::string& dir) {
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    const std::string name = file.path().filename().string();
    if (name.find("hf_quant_config") != std::string::npos) continue;
    try {
      const ModelConfig c = parse_model_config(read_text_file(file.path(), 16 << 20), name);
      const TensorTotals totals = total_of(all_tensors(c));
      std::printf("%s: %s, %ld layers, %.1f B parameters, scale %.10f, quantization \"%s\"\n",
                  name.c_str(), c.family.c_str(), static_cast<long>(c.layer_count),
                  static_cast<double>(totals.parameter_count) / 1e9, c.softmax_scale(),
                  c.quantization.c_str());
    } catch (const Error& error) {
      EXPECT_THAT(std::string(error.what()), HasSubstr("not supported"));
      std::printf("%s\n", error.what());
    }
  }
}
const bool kReleasedConfigs = OptInTest::add("ReleasedConfigs", "ParseOrNameTheirFeature",
                                             "FORESAIL_CONFIGS_DIR", check_released_configs);

}  // namespace
}  // namespace foresail
