// Wrong, hostile and unsupported values in config.json: one line with file, key, value and advice.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/model_config.h"
#include "unit/checkpoint/temp_folder.h"

namespace foresail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Json base_config(const std::string& golden = "g01_v3_yarn") {
  const auto path =
      std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/goldens" / golden / "config.json";
  return *parse_json(read_text_file(path, 1 << 20));
}

// The base with a JSON merge patch; null removes a key.
ModelConfig parse_patched(const char* patch, const std::string& golden = "g01_v3_yarn") {
  Json config = base_config(golden);
  config.merge_patch(Json::parse(patch));
  return parse_model_config(json_text(config), "config.json");
}

struct BadValue {
  const char* name;
  const char* patch;
  const char* message;
  const char* golden = "g01_v3_yarn";
};

// clang-format off
constexpr BadValue kBadValues[] = {
  {"NegativeHidden", R"({"hidden_size":-64})", "config.json: hidden_size is -64: it must be an integer from 1 to 1048576"},
  {"HugeHidden", R"({"hidden_size":18446744073709551615})", "hidden_size is 18446744073709551615: it must be an integer"},
  {"FractionHidden", R"({"hidden_size":64.5})", "hidden_size is 64.5: it must be an integer"},
  {"WholeFloatHidden", R"({"hidden_size":64.0})", "hidden_size is 64.0: it must be an integer"},
  {"StringHidden", R"({"hidden_size":"64"})", "hidden_size is \"64\": it must be an integer"},
  {"BoolHidden", R"({"hidden_size":true})", "hidden_size is true: it must be an integer"},
  {"ListHidden", R"({"hidden_size":[64]})", "hidden_size is [64]: it must be an integer"},
  {"AbsentHidden", R"({"hidden_size":null})", "hidden_size is absent"},
  {"ABillionLayers", R"({"num_hidden_layers":1000000000})", "num_hidden_layers is 1000000000: it must be an integer from 1 to 4096"},
  {"NoLayers", R"({"num_hidden_layers":0})", "num_hidden_layers is 0"},
  {"NoVocabulary", R"({"vocab_size":0})", "vocab_size is 0"},
  {"HeadsAsFloat", R"({"num_attention_heads":1e30})", "num_attention_heads is 1e+30"},
  {"GroupedHeads", R"({"num_key_value_heads":2})", "num_key_value_heads is 2: MLA needs it equal to num_attention_heads 4"},
  {"ZeroQLora", R"({"q_lora_rank":0})", "q_lora_rank is 0"},
  {"OddRope", R"({"qk_rope_head_dim":7})", "qk_rope_head_dim is 7: rotary positions need an even number"},
  {"WrongHeadDim", R"({"qk_head_dim":99})", "qk_head_dim is 99: qk_nope_head_dim + qk_rope_head_dim is 24"},
  {"Gelu", R"({"hidden_act":"gelu"})", "hidden_act is \"gelu\": only silu is supported"},
  {"GroupsDoNotDivide", R"({"n_group":3})", "n_group is 3: it must divide n_routed_experts 8"},
  {"GroupsOfOne", R"({"n_group":8})", "n_group is 8: each group needs at least 2 of the 8 experts"},
  {"TooManyTopGroups", R"({"topk_group":5})", "topk_group is 5: it must not exceed n_group 4"},
  {"TopGroupsTooFewExperts", R"({"topk_group":1,"num_experts_per_tok":3})", "topk_group is 1: 1 groups of 2 experts hold fewer than num_experts_per_tok 3"},
  {"MoreThanAllExperts", R"({"num_experts_per_tok":9})", "num_experts_per_tok is 9: it must not exceed n_routed_experts 8"},
  {"NegativeExperts", R"({"n_routed_experts":-8})", "n_routed_experts is -8"},
  {"TooManyExperts", R"({"n_routed_experts":65536,"num_hidden_layers":4096})", "n_routed_experts is 65536: times num_hidden_layers 4096"},
  {"ExpertsAbsent", R"({"n_routed_experts":null})", "n_routed_experts is absent while other expert settings are present"},
  {"NegativeDense", R"({"first_k_dense_replace":-1})", "first_k_dense_replace is -1"},
  {"ZeroFrequency", R"({"moe_layer_freq":0})", "moe_layer_freq is 0"},
  {"ShortLayerTypes", R"({"mlp_layer_types":["dense"]})", "mlp_layer_types must list 3 layers"},
  {"OddLayerType", R"({"mlp_layer_types":["dense","sparse","moe"]})", "mlp_layer_types may hold only"},
  {"LayerTypesDisagree", R"({"mlp_layer_types":["dense","dense","sparse"]})", "mlp_layer_types disagrees with first_k_dense_replace"},
  {"SlidingLayer", R"({"layer_types":["full_attention","sliding_attention","full_attention"]})", "layer_types holds \"sliding_attention\": only full_attention"},
  {"SoftmaxV3", R"({"scoring_func":"softmax"})", "scoring_func is \"softmax\": deepseek_v3 gates score with sigmoid"},
  {"SigmoidV2", R"({"scoring_func":"sigmoid"})", "scoring_func is \"sigmoid\": deepseek_v2 gates score with softmax", "g04_v2_lite"},
  {"GreedyV3", R"({"topk_method":"greedy"})", "topk_method is \"greedy\": deepseek_v3 supports noaux_tc"},
  {"NoAuxV2", R"({"topk_method":"noaux_tc"})", "topk_method is \"noaux_tc\": deepseek_v2 supports", "g04_v2_lite"},
  {"GroupedMistral", R"({"n_group":2})", "n_group is 2: grouped softmax gates", "g09_mistral4"},
  {"ZeroScale", R"({"routed_scaling_factor":0})", "routed_scaling_factor is 0"},
  {"StringNorm", R"({"norm_topk_prob":"yes"})", "norm_topk_prob is \"yes\": it must be true or false"},
  {"ZeroEps", R"({"rms_norm_eps":0})", "rms_norm_eps is 0"},
  {"StringEps", R"({"rms_norm_eps":"1e-6"})", "rms_norm_eps is \"1e-6\": it must be a number"},
  {"NegativePositions", R"({"max_position_embeddings":-1})", "max_position_embeddings is -1"},
  {"EosOutside", R"({"eos_token_id":320})", "eos_token_id is 320: token ids must be integers from 0 to 319"},
  {"EosNegativeInList", R"({"eos_token_id":[1,-1]})", "eos_token_id is [1,-1]: token ids"},
  {"EosHuge", R"({"eos_token_id":18446744073709551615})", "eos_token_id is 18446744073709551615: token ids"},
  {"BosString", R"({"bos_token_id":"0"})", "bos_token_id is \"0\": token ids"},
  {"ManyMtp", R"({"num_nextn_predict_layers":65})", "num_nextn_predict_layers is 65"},
  {"ModelTypeNumber", R"({"model_type":3})", "model_type is 3: it must be a string"},
  {"NoModelType", R"({"model_type":null,"architectures":null})", "model_type is absent"},
  {"ArchitecturesText", R"({"architectures":"DeepseekV3ForCausalLM"})", "architectures is \"DeepseekV3ForCausalLM\": it must be a list"},
  {"Linear", R"({"rope_parameters":{"rope_type":"linear","type":"linear"}})", "rope_parameters.rope_type is \"linear\": this rope scaling is not supported"},
  {"TypeAgainstRopeType", R"({"rope_parameters":{"type":"linear"}})", "make them agree"},
  {"ThetaDisagrees", R"({"rope_theta":20000})", "rope_theta gives rope_theta 20000 while another rope entry gives 10000.0: make them agree"},
  {"ScalingDisagrees", R"({"rope_scaling":{"factor":8}})", "rope_scaling gives factor 8 while another rope entry gives 4.0: make them agree"},
  {"FactorBelowOne", R"({"rope_parameters":{"factor":0.5}})", "rope_parameters.factor is 0.5"},
  {"OriginalAbsent", R"({"rope_parameters":{"original_max_position_embeddings":null}})", "rope_parameters.original_max_position_embeddings is absent: yarn needs it"},
  {"FactorAbsent", R"({"rope_parameters":{"factor":null}})", "rope_parameters.factor is absent: yarn needs it"},
  {"LongRopeOriginalAbsent", R"({"rope_parameters":{"rope_type":"longrope","short_factor":[1,1,1,1],"long_factor":[1,1,1,1]}})", "original_max_position_embeddings is absent: longrope needs it", "g10_minicpm3"},
  {"LongRopeFactorsAbsent", R"({"rope_parameters":{"rope_type":"longrope","original_max_position_embeddings":64}})", "rope_parameters.short_factor is absent: longrope needs it", "g10_minicpm3"},
  {"QueryScalingBeta", R"({"llama_4_scaling":{"original_max_position_embeddings":64}})", "llama_4_scaling.beta is absent: llama_4_scaling needs it"},
  {"QueryScalingOriginal", R"({"rope_parameters":{"llama_4_scaling_beta":0.1}})", "original_max_position_embeddings is absent: llama_4_scaling_beta needs it", "g02_moonlight"},
  {"ThetaOneYarn", R"({"rope_parameters":{"rope_theta":1.0}})", "YaRN needs a base above 1"},
  {"ThetaInfinite", R"({"rope_parameters":{"rope_theta":1e300}})", "rope_parameters.rope_theta is 1e+300"},
  {"UnknownRopeKey", R"({"rope_parameters":{"yarn_flavour":1}})", "rope_parameters.yarn_flavour is 1: this rope setting is not supported"},
  {"RopeIsText", R"({"rope_parameters":"yarn"})", "rope_parameters is \"yarn\": it must be a JSON object"},
  {"PartialRotary", R"({"partial_rotary_factor":0.25})", "partial_rotary_factor is 0.25: it disagrees with qk_rope_head_dim 8 of 24"},
  {"HalfSplitV2", R"({"rope_interleave":false})", "rope_interleave is false: DeepSeek-V2 rotates adjacent pairs", "g04_v2_lite"},
  {"LongRopeShortList", R"({"rope_parameters":{"rope_type":"longrope","short_factor":[1],"long_factor":[1,1,1,1],"original_max_position_embeddings":64}})", "rope_parameters.short_factor must be a list of 4 numbers", "g10_minicpm3"},
  {"LongRopeZero", R"({"rope_parameters":{"rope_type":"longrope","short_factor":[1,1,0,1],"long_factor":[1,1,1,1],"original_max_position_embeddings":64}})", "rope_parameters.short_factor must hold numbers above 0", "g10_minicpm3"},
  {"ScaledEmbeddings", R"({"scale_emb":12})", "scale_emb is 12: only minicpm3 scales"},
  {"MlpBias", R"({"mlp_bias":true})", "mlp_bias: biases in the MLP are not supported yet"},
  {"Gated", R"({"use_output_gate":true})", "use_output_gate: gated attention output is not supported yet"},
  {"NopeMla", R"({"mla_use_nope":true})", "mla_use_nope: MLA without rotary positions is not supported yet"},
  {"SwigluLimit", R"({"swiglu_limit":10.0})", "swiglu_limit: clamped SwiGLU is not supported yet"},
  {"HyperConnections", R"({"hc_mult":4})", "hc_mult: hyper-connections are not supported yet"},
  {"Residuals", R"({"attn_res_block_size":12})", "attn_res_block_size: attention residuals are not supported yet"},
  {"Indexer", R"({"index_topk":2048})", "index_topk: DeepSeek sparse attention (DSA indexer) is not supported yet"},
  {"ZeroExperts", R"({"zero_expert_num":2})", "zero_expert_num: zero (identity) experts are not supported yet"},
  {"Window", R"({"sliding_window":128})", "sliding_window: sliding-window attention is not supported yet"},
  {"UnknownMaths", R"({"attn_temperature_tuning":true})", "attn_temperature_tuning is true: Foresail does not know this key and it may change what the model computes"},
  {"TextConfigIsList", R"({"text_config":[]})", "text_config is []: it must be a JSON object"},
  {"QuantizationText", R"({"quantization_config":"fp8"})", "quantization_config is \"fp8\": it must be a JSON object"},
};
// clang-format on

class BadConfigValue : public testing::TestWithParam<BadValue> {};

TEST_P(BadConfigValue, IsNamedInOneLine) {
  const std::string message = error_of([] { parse_patched(GetParam().patch, GetParam().golden); });
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, HasSubstr("config.json: "));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(All, BadConfigValue, testing::ValuesIn(kBadValues),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ConfigText, BrokenJsonIsOneLine) {
  const std::string deep = std::string(100000, '[');
  for (const char* text :
       {"", "{", "[]", "null", "3", "{\"a\":1}{\"b\":2}", "\xEF\xBB\xBF{}", "{\"a\":1e999}",
        "{\"hidden_size\":NaN}", "{\"a\\n\":1,\"a\\n\":2}", "{\"\xFF\":1}", deep.c_str()}) {
    const std::string message = error_of([&] { parse_model_config(text, "config.json"); });
    EXPECT_THAT(message, HasSubstr("config.json: ")) << text;
    EXPECT_THAT(message, Not(HasSubstr("\n"))) << text;
    EXPECT_LT(message.size(), 500u);
  }
  EXPECT_THAT(error_of([] { parse_model_config("{\"a\":1,\"a\":2}", "c"); }),
              HasSubstr("repeats the key \"a\""));
  EXPECT_THAT(error_of([] { parse_model_config("\xEF\xBB\xBF{}", "c"); }),
              HasSubstr("byte order mark"));
}

TEST(ConfigText, HarmlessExtrasAreAccepted) {
  const ModelConfig config = parse_patched(
      R"({"swiglu_limit":null,"use_output_gate":false,"index_topk":0,"compress_ratios":[],"some_new_key":17,
          "id2label":{"0":"x"},"sliding_window":null,"layer_types":["full_attention","full_attention"],
          "length_penalty":1.0,"ep_size":1,"auto_map":{"AutoConfig":"x.Y"}})");
  EXPECT_EQ(config.layer_count, 3);
}

TEST(ConfigText, BothRopeSpellingsGiveTheSame) {
  const ModelConfig both = parse_patched(
      R"({"rope_theta":10000,"rope_scaling":{"type":"yarn","factor":4,"mscale":1,"mscale_all_dim":1.0,
          "original_max_position_embeddings":128,"beta_fast":32,"beta_slow":1}})");
  const ModelConfig old_only = parse_patched(
      R"({"rope_parameters":null,"rope_theta":10000,"rope_scaling":{"type":"yarn","factor":4,"mscale":1,
          "mscale_all_dim":1.0,"original_max_position_embeddings":128,"beta_fast":32,"beta_slow":1}})");
  const ModelConfig new_only = parse_patched("{}");
  EXPECT_EQ(both.inv_freq(1), new_only.inv_freq(1));
  EXPECT_EQ(old_only.inv_freq(1), new_only.inv_freq(1));
  EXPECT_EQ(old_only.softmax_scale(), new_only.softmax_scale());
}

TEST(ConfigText, YarnAmplitude) {
  EXPECT_EQ(parse_patched("{}").rope_amplitude(1), 1.0);
  const double m4 = 0.1 * std::log(4.0) + 1.0;
  const ModelConfig bare =
      parse_patched(R"({"rope_parameters":{"mscale":null,"mscale_all_dim":null}})");
  EXPECT_NEAR(bare.rope_amplitude(1), m4, 1e-12);
  EXPECT_NEAR(bare.softmax_scale(), 1.0 / std::sqrt(24.0), 1e-12);  // no mscale_all_dim, no square
  const ModelConfig uneven =
      parse_patched(R"({"rope_parameters":{"mscale":2.0,"mscale_all_dim":0.5}})");
  EXPECT_NEAR(uneven.rope_amplitude(1), (0.2 * std::log(4.0) + 1.0) / (0.05 * std::log(4.0) + 1.0),
              1e-12);
  const ModelConfig fixed = parse_patched(R"({"rope_parameters":{"attention_factor":1.5}})");
  EXPECT_EQ(fixed.rope_amplitude(1), 1.5);
}

TEST(ConfigText, LongRopeAmplitudeAndFactors) {
  const ModelConfig config = parse_patched(
      R"({"rope_parameters":{"rope_type":"longrope","short_factor":[1,1,1,1],"long_factor":[1,2,3,4],
          "original_max_position_embeddings":128}})",
      "g10_minicpm3");
  EXPECT_NEAR(config.rope_amplitude(512), std::sqrt(1.0 + std::log(4.0) / std::log(128.0)), 1e-12);
  EXPECT_NEAR(config.inv_freq(128)[3], std::pow(10000.0, -0.75), 1e-12);
  EXPECT_NEAR(config.inv_freq(129)[3], std::pow(10000.0, -0.75) / 4.0, 1e-12);
}

TEST(ConfigText, V2NormalisesInsteadOfScaling) {
  const ModelConfig normal = parse_patched(R"({"norm_topk_prob":true})", "g05_v2_groups");
  EXPECT_TRUE(normal.moe.normalize);
  EXPECT_EQ(normal.moe.routed_scale, 1.0);
  const ModelConfig single =
      parse_patched(R"({"norm_topk_prob":true,"num_experts_per_tok":1})", "g05_v2_groups");
  EXPECT_FALSE(single.moe.normalize);
  EXPECT_EQ(single.moe.routed_scale, 16.0);
}

TEST(ConfigText, AbsentKeysTakeTheClassDefaults) {
  const ModelConfig config = parse_patched(
      R"({"n_group":null,"topk_group":null,"attention_bias":null,"rope_interleave":null,
          "tie_word_embeddings":null,"num_nextn_predict_layers":null})",
      "g04_v2_lite");
  EXPECT_EQ(config.moe.group_count, 1);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.mtp_layer_count, 0);
  EXPECT_TRUE(parse_patched(R"({"tie_word_embeddings":null})", "g08_youtu").tied_embeddings);
}

TEST(ConfigText, LayerKinds) {
  EXPECT_THAT(
      parse_patched(R"({"num_hidden_layers":6,"first_k_dense_replace":2,"moe_layer_freq":2})")
          .layer_is_moe,
      ElementsAre(false, false, true, false, true, false));
  EXPECT_THAT(parse_patched(R"({"mlp_layer_types":["dense","dense","sparse"]})", "g06_glm47_flash")
                  .layer_is_moe,
              ElementsAre(false, false, true));
}

TEST(GenerationConfig, ExtendsTheEosList) {
  const TempFolder folder;
  folder.write("config.json", json_text(base_config()));
  folder.write("generation_config.json", R"({"eos_token_id":[7,1],"bos_token_id":5})");
  const ModelConfig config = read_model_config(folder.path());
  EXPECT_THAT(config.eos_ids, ElementsAre(1, 7));
  EXPECT_EQ(config.bos_id, 0);
  folder.write("generation_config.json", R"({"eos_token_id":[7000]})");
  EXPECT_THAT(error_of([&] { read_model_config(folder.path()); }),
              HasSubstr("generation_config.json: eos_token_id"));
  folder.write("generation_config.json", "{");
  EXPECT_THAT(error_of([&] { read_model_config(folder.path()); }),
              HasSubstr("generation_config.json: JSON"));
}

TEST(ReadModelConfig, MissingFilesAndModelopt) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { read_model_config(folder.path()); }), HasSubstr("config.json"));
  folder.write("config.json", json_text(base_config()));
  folder.write("hf_quant_config.json",
               R"({"quantization":{"quant_algo":"NVFP4","group_size":16}})");
  EXPECT_EQ(read_model_config(folder.path()).quantization, "NVFP4 (modelopt)");
}

}  // namespace
}  // namespace foresail
