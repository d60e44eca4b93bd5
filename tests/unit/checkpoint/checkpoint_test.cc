// Opening checkpoints: wrappers, fused experts, tied heads, MTP layers, and every mismatch between
// config and tensors.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/name_map.h"
#include "checkpoint/tensor_list.h"
#include "checkpoint/weight_source.h"
#include "unit/checkpoint/editable_checkpoint.h"

namespace foresail {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kLayer1 = "model.layers.1.";

std::unique_ptr<WeightSource> open(const EditableCheckpoint& checkpoint, const TempFolder& folder) {
  checkpoint.write(folder.path());
  return open_checkpoint(folder.path(), read_model_config(folder.path()));
}

std::string open_error(const EditableCheckpoint& checkpoint) {
  const TempFolder folder;
  const std::string message = error_of([&] { open(checkpoint, folder); });
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  return message;
}

void take_all(WeightSource& source, const ModelConfig& config) {
  for (const TensorSpec& spec : all_tensors(config)) source.take(spec.name, spec.shape);
}

struct Mismatch {
  const char* name;
  void (*edit)(EditableCheckpoint&);
  const char* message;
  const char* golden = "g01_v3_yarn";
};

// clang-format off
const Mismatch kMismatches[] = {
  {"KvBRows", [](auto& c) { c.add(kLayer1 + "self_attn.kv_b_proj.weight", {129, 32}); }, "model.safetensors: tensor model.layers.1.self_attn.kv_b_proj.weight has shape [129, 32] but config.json needs [128, 32]"},
  {"GateRows", [](auto& c) { c.add(kLayer1 + "mlp.gate.weight", {7, 64}); }, "mlp.gate.weight has shape [7, 64] but config.json needs [8, 64]"},
  {"VocabularyRows", [](auto& c) { c.config["vocab_size"] = 321; }, "model.embed_tokens.weight has shape [320, 64] but config.json needs [321, 64]"},
  {"WrongRank", [](auto& c) { c.add("model.norm.weight", {64, 1}); }, "model.norm.weight has shape [64, 1] but config.json needs [64]"},
  {"BiasAbsent", [](auto& c) { c.tensors.erase(kLayer1 + "mlp.gate.e_score_correction_bias"); }, "tensor model.layers.1.mlp.gate.e_score_correction_bias [8] is missing"},
  {"ExpertMissing", [](auto& c) { c.tensors.erase(kLayer1 + "mlp.experts.5.up_proj.weight"); }, "tensor model.layers.1.mlp.experts.5.up_proj.weight [32, 64] is missing: config.json has n_routed_experts 8"},
  {"ExpertSurplus", [](auto& c) { c.add(kLayer1 + "mlp.experts.8.up_proj.weight", {32, 64}); }, "tensor model.layers.1.mlp.experts.8.up_proj.weight does not belong"},
  {"BothQ", [](auto& c) { c.add(kLayer1 + "self_attn.q_proj.weight", {96, 64}); }, "tensor model.layers.1.self_attn.q_proj.weight does not belong"},
  {"QWithoutLora", [](auto& c) { c.config["q_lora_rank"] = nullptr; }, "tensor model.layers.0.self_attn.q_proj.weight [96, 64] is missing: config.json has no q_lora_rank"},
  {"HeadAbsent", [](auto& c) { c.tensors.erase("lm_head.weight"); }, "tensor lm_head.weight [320, 64] is missing: add it, or set tie_word_embeddings"},
  {"UnknownName", [](auto& c) { c.add("model.extra.weight", {1}); }, "tensor model.extra.weight does not belong to the deepseek_v3 model with 3 layers and 8 experts"},
  {"UnaskedBias", [](auto& c) { c.add(kLayer1 + "self_attn.o_proj.bias", {64}); }, "self_attn.o_proj.bias does not belong"},
  {"MissingBias", [](auto& c) { c.config["attention_bias"] = true; }, "tensor model.layers.0.self_attn.q_a_proj.bias [24] is missing"},
  {"LayerBeyond", [](auto& c) { c.config["num_hidden_layers"] = 2; }, "tensor model.layers.2.input_layernorm.weight does not belong to the deepseek_v3 model with 2 layers"},
  {"LayerMissing", [](auto& c) { c.config["num_hidden_layers"] = 4; }, "tensor model.layers.3.input_layernorm.weight [64] is missing"},
  {"Fp8Tensor", [](auto& c) { c.add("model.norm.weight", {64}, DType::kF8E4M3); }, "tensor model.norm.weight is F8_E4M3: only BF16, F16 and F32 weights are supported yet"},
  {"IntegerTensor", [](auto& c) { c.add("model.norm.weight", {64}, DType::kI64); }, "tensor model.norm.weight is I64"},
  {"ScaleTensor", [](auto& c) { c.add(kLayer1 + "self_attn.o_proj.weight_scale_inv", {1, 1}, DType::kF32); }, "weight_scale_inv does not belong"},
  {"QuantisedConfig", [](auto& c) { c.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}; }, "config.json: quantization_config: FP8 block weights are not supported yet"},
  {"PrefixTwice", [](auto& c) { c.add("language_model.model.norm.weight", {64}); }, "both stand for model.norm.weight"},
  {"FusedTransposed", [](auto& c) { c.add("model.layers.0.mlp.experts.down_proj", {8, 32, 64}); }, "experts.down_proj has shape [8, 32, 64] but config.json needs [8, 64, 32]", "g09_mistral4"},
  {"FusedTooFew", [](auto& c) { c.add("model.layers.0.mlp.experts.gate_up_proj", {7, 64, 64}); }, "experts.gate_up_proj has shape [7, 64, 64] but config.json needs [8, 64, 64]", "g09_mistral4"},
  {"FusedAndSingle", [](auto& c) { c.add("model.layers.0.mlp.experts.3.up_proj.weight", {32, 64}); }, "both stand for model.layers.0.mlp.experts.3.up_proj.weight", "g09_mistral4"},
  {"MtpShape", [](auto& c) { c.add("model.layers.3.eh_proj.weight", {64, 64}); }, "model.layers.3.eh_proj.weight has shape [64, 64] but config.json needs [64, 128]", "g13_v3_mtp"},
  {"MtpUnknown", [](auto& c) { c.add("model.layers.3.extra.weight", {64}); }, "model.layers.3.extra.weight does not belong", "g13_v3_mtp"},
  {"MtpFarAway", [](auto& c) { c.add("model.layers.999999.eh_proj.weight", {64, 128}); }, "an MTP layer 999999 beyond the 3 layers", "g13_v3_mtp"},
  {"StrangeName", [](auto& c) { c.add(std::string("a\0\nb", 4), {1}); }, "tensor a\\x00\\x0ab does not belong"},
};
// clang-format on

class CheckpointMismatch : public testing::TestWithParam<Mismatch> {};

TEST_P(CheckpointMismatch, NamesFileAndTensor) {
  EditableCheckpoint checkpoint(GetParam().golden);
  GetParam().edit(checkpoint);
  EXPECT_THAT(open_error(checkpoint), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointMismatch, testing::ValuesIn(kMismatches),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Checkpoint, MtpLayersAreOptional) {
  const EditableCheckpoint checkpoint("g13_v3_mtp");
  const TempFolder folder;
  const auto source = open(checkpoint, folder);
  const ModelConfig config = read_model_config(folder.path());
  EXPECT_TRUE(source->has("model.layers.3.eh_proj.weight"));
  take_all(*source, config);
  source->finish();  // though no MTP tensor was taken
  const int64_t shape[] = {64, 128};
  EXPECT_EQ(source->take("model.layers.3.eh_proj.weight", shape).data.size_bytes(), 64u * 128 * 2);
  source->finish();
}

TEST(Checkpoint, FinishNamesWhatNobodyTook) {
  const EditableCheckpoint checkpoint("g01_v3_yarn");
  const TempFolder folder;
  const auto source = open(checkpoint, folder);
  EXPECT_THAT(error_of([&] { source->finish(); }),
              HasSubstr("tensor lm_head.weight was loaded by nobody"));
}

TEST(Checkpoint, TakeChecksTheShapeAsked) {
  const EditableCheckpoint checkpoint("g01_v3_yarn");
  const TempFolder folder;
  const auto source = open(checkpoint, folder);
  const int64_t shape[] = {65};
  EXPECT_THAT(error_of([&] { source->take("model.norm.weight", shape); }),
              HasSubstr("model.norm.weight has shape [64]"));
  EXPECT_THAT(error_of([&] { source->take("model.nothing", shape); }),
              HasSubstr("model.nothing is missing"));
}

TEST(Checkpoint, TiedHeads) {
  EditableCheckpoint checkpoint("g08_youtu");
  const TempFolder folder;
  EXPECT_FALSE(open(checkpoint, folder)->has("lm_head.weight"));
  checkpoint.add("lm_head.weight", {320, 64});  // a copy in the file is ignored
  const TempFolder with_copy;
  const auto source = open(checkpoint, with_copy);
  EXPECT_FALSE(source->has("lm_head.weight"));
  take_all(*source, read_model_config(with_copy.path()));
  source->finish();
}

TEST(Checkpoint, HalfAndSingleFloatsKeepTheirType) {
  EditableCheckpoint checkpoint("g01_v3_yarn");
  checkpoint.add("model.norm.weight", {64}, DType::kF32);
  checkpoint.add("lm_head.weight", {320, 64}, DType::kF16);
  checkpoint.add(kLayer1 + "mlp.gate.e_score_correction_bias", {8}, DType::kBF16);
  const TempFolder folder;
  const auto source = open(checkpoint, folder);
  const int64_t norm[] = {64}, head[] = {320, 64};
  EXPECT_EQ(source->take("model.norm.weight", norm).dtype, DType::kF32);
  EXPECT_EQ(source->take("lm_head.weight", head).dtype, DType::kF16);
}

TEST(Checkpoint, WrappersOfBothKinds) {
  for (const auto& [model_prefix, head] : std::vector<std::pair<std::string, std::string>>{
           {"language_model.model.", "language_model.lm_head.weight"},
           {"model.language_model.", "lm_head.weight"}}) {
    EditableCheckpoint checkpoint("g03_kimi_k2");
    const auto original = checkpoint.tensors;
    for (const auto& [name, tensor] : original)
      checkpoint.rename(name, name == "lm_head.weight" ? head : model_prefix + name.substr(6));
    checkpoint.add("vision_tower.patch_embed.weight", {3});
    checkpoint.add("mm_projector.weight", {3});
    checkpoint.add("model.vision_tower.patch_embed.weight", {3});
    checkpoint.config = {{"model_type", "kimi_k25"}, {"text_config", checkpoint.config}};
    const TempFolder folder;
    const auto source = open(checkpoint, folder);
    const int64_t shape[] = {64};
    const HostTensor norm = source->take("model.norm.weight", shape);
    EXPECT_EQ(0, std::memcmp(norm.data.data(), original.at("model.norm.weight").bytes.data(),
                             norm.data.size_bytes()));
    take_all(*source, read_model_config(folder.path()));
    source->finish();
    checkpoint.add("audio_tower.weight", {3});
    EXPECT_THAT(open_error(checkpoint), HasSubstr("tensor audio_tower.weight does not belong"));
  }
}

TEST(Checkpoint, VisionTensorsOutsideAWrapperAreSurplus) {
  EditableCheckpoint checkpoint("g01_v3_yarn");
  checkpoint.add("vision_tower.patch_embed.weight", {3});
  EXPECT_THAT(open_error(checkpoint), HasSubstr("vision_tower.patch_embed.weight does not belong"));
}

TEST(Checkpoint, IgnorableTensors) {
  EditableCheckpoint checkpoint("g01_v3_yarn");
  checkpoint.add(kLayer1 + "self_attn.rotary_emb.inv_freq", {4}, DType::kF32);
  checkpoint.add(kLayer1 + "self_attn.k_proj.k_scale", {}, DType::kF32);
  EXPECT_EQ(open_error(checkpoint), "");
}

// Fusing the experts of g01 by hand must give back the same matrices.
TEST(Checkpoint, FusedExpertsEqualSingleOnes) {
  EditableCheckpoint checkpoint("g01_v3_yarn");
  const auto single = checkpoint.tensors;
  for (const std::string layer : {"model.layers.1.", "model.layers.2."}) {
    EditableTensor gate_up{DType::kBF16, {8, 64, 64}, {}}, down{DType::kBF16, {8, 64, 32}, {}};
    for (int expert = 0; expert < 8; ++expert) {
      const std::string prefix = layer + "mlp.experts." + std::to_string(expert) + ".";
      for (const char* name : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
        const auto& bytes = checkpoint.tensors[prefix + name].bytes;
        auto& fused = name[0] == 'd' ? down : gate_up;
        fused.bytes.insert(fused.bytes.end(), bytes.begin(), bytes.end());
        checkpoint.tensors.erase(prefix + name);
      }
    }
    // The files hold the name with or without a suffix.
    const std::string suffix = layer == "model.layers.1." ? "" : ".weight";
    checkpoint.tensors[layer + "mlp.experts.gate_up_proj" + suffix] = gate_up;
    checkpoint.tensors[layer + "mlp.experts.down_proj" + suffix] = down;
  }
  const TempFolder folder;
  const auto source = open(checkpoint, folder);
  for (const TensorSpec& spec : all_tensors(read_model_config(folder.path()))) {
    const HostTensor tensor = source->take(spec.name, spec.shape);
    ASSERT_EQ(tensor.data.size_bytes(), single.at(spec.name).bytes.size()) << spec.name;
    EXPECT_EQ(0, std::memcmp(tensor.data.data(), single.at(spec.name).bytes.data(),
                             tensor.data.size_bytes()))
        << spec.name;
  }
  source->finish();
}

TEST(NameMap, CanonicalNames) {
  EXPECT_EQ(canonical_name("model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(canonical_name("language_model.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(canonical_name("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(canonical_name("model.language_model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(canonical_name("model.language_model.model.norm.weight"), "model.norm.weight");
}

}  // namespace
}  // namespace foresail
