#include "checkpoint/presets.h"

#include <string>

#include "base/error.h"
#include "checkpoint/byte_tokenizer.h"

namespace foresail {
namespace {

constexpr PresetInfo kPresets[] = {
    {"tiny-mla", "4 layers, 8 experts, 7 MB: for trials and tests"},
    {"tiny-mtp", "tiny-mla with an MTP layer for drafting"},
    {"tiny-eagle3", "tiny-mla with an EAGLE-3 head in DIR/draft"},
    {"mla-mid", "3.8 B parameters, 7.5 GB: the CPU benchmark"},
    {"deepseek-v2-lite", "the shape of DeepSeek-V2-Lite, 31 GB"},
    {"kimi-k2-slice", "what one of four ranks holds of 4 layers of Kimi-K2, 27 GB"},
};

constexpr int64_t kMaxLayers = 1024;

ModelConfig deepseek_v3_base() {
  ModelConfig config;
  config.family = "deepseek_v3";
  config.architecture = "DeepseekV3ForCausalLM";
  config.bos_id = kByteTokenizerBos;
  config.eos_ids = {kByteTokenizerEos};
  config.moe.scoring = GateScoring::kSigmoid;
  config.moe.method = GateMethod::kNoAuxTc;
  config.moe.normalize = true;
  config.moe.routed_scale = 2.5;
  return config;
}

void set_yarn(RopeConfig& rope, double factor, int64_t original_max_positions, double mscale) {
  rope.scaling = RopeScaling::kYarn;
  rope.factor = factor;
  rope.original_max_positions = original_max_positions;
  rope.mscale = mscale;
  rope.mscale_all_dim = mscale;
}

ModelConfig tiny_mla() {
  ModelConfig config = deepseek_v3_base();
  config.vocab_size = 512;
  config.hidden_dim = 256;
  config.layer_count = 4;
  config.head_count = 4;
  config.q_lora_rank = 96;
  config.kv_lora_rank = 64;
  config.nope_dim = 32;
  config.rope_dim = 16;
  config.value_dim = 32;
  config.intermediate_dim = 512;
  config.moe.expert_count = 8;
  config.moe.top_k = 2;
  config.moe.inner_dim = 128;
  config.moe.shared_expert_count = 1;
  config.moe.group_count = 4;
  config.moe.top_groups = 2;
  set_yarn(config.rope, 4.0, 1024, 1.0);
  config.max_positions = 4096;
  return config;
}

ModelConfig mla_mid() {
  ModelConfig config = deepseek_v3_base();
  config.vocab_size = 102400;
  config.hidden_dim = 2048;
  config.layer_count = 12;
  config.head_count = 16;
  config.q_lora_rank = 768;
  config.kv_lora_rank = 512;
  config.nope_dim = 128;
  config.rope_dim = 64;
  config.value_dim = 128;
  config.intermediate_dim = 8192;
  config.moe.expert_count = 32;
  config.moe.top_k = 6;
  config.moe.inner_dim = 1408;
  config.moe.shared_expert_count = 1;
  config.max_positions = 32768;
  return config;
}

ModelConfig deepseek_v2_lite() {
  ModelConfig config = mla_mid();
  config.family = "deepseek_v2";
  config.architecture = "DeepseekV2ForCausalLM";
  config.layer_count = 27;
  config.q_lora_rank = 0;
  config.intermediate_dim = 10944;
  config.moe.expert_count = 64;
  config.moe.shared_expert_count = 2;
  config.moe.scoring = GateScoring::kSoftmax;
  config.moe.method = GateMethod::kGreedy;
  config.moe.normalize = false;
  config.moe.routed_scale = 1.0;
  set_yarn(config.rope, 40.0, 4096, 0.707);
  config.max_positions = 163840;
  return config;
}

// Tensor parallelism over four ranks: a quarter of the heads, of every inner size and of the
// vocabulary; all experts, so routing is that of the whole model.
ModelConfig kimi_k2_slice() {
  ModelConfig config = deepseek_v3_base();
  config.family = "kimi_k2";
  config.vocab_size = 40960;
  config.hidden_dim = 7168;
  config.layer_count = 4;
  config.head_count = 16;
  config.q_lora_rank = 1536;
  config.kv_lora_rank = 512;
  config.nope_dim = 128;
  config.rope_dim = 64;
  config.value_dim = 128;
  config.intermediate_dim = 4608;
  config.moe.expert_count = 384;
  config.moe.top_k = 8;
  config.moe.inner_dim = 512;
  config.moe.shared_expert_count = 1;
  config.moe.routed_scale = 2.827;
  config.rope.theta = 50000.0;
  set_yarn(config.rope, 32.0, 4096, 1.0);
  config.rope.beta_fast = 1.0;
  config.max_positions = 131072;
  return config;
}

EagleDraftConfig tiny_draft(const ModelConfig& target) {
  EagleDraftConfig draft;
  draft.head_count = 4;
  draft.kv_head_count = 2;
  draft.head_dim = 64;
  draft.intermediate_dim = 512;
  draft.draft_vocab_size = 320;
  draft.aux_layers = {0, (target.layer_count - 1) / 2, target.layer_count - 1};
  return draft;
}

std::string all_names() {
  std::string names;
  for (const PresetInfo& preset : kPresets)
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  return names;
}

}  // namespace

std::span<const PresetInfo> preset_list() {
  return kPresets;
}

Preset make_preset(std::string_view name, std::optional<int64_t> layers) {
  Preset preset;
  if (name == "tiny-mla" || name == "tiny-mtp" || name == "tiny-eagle3") {
    preset.config = tiny_mla();
  } else if (name == "mla-mid") {
    preset.config = mla_mid();
  } else if (name == "deepseek-v2-lite") {
    preset.config = deepseek_v2_lite();
  } else if (name == "kimi-k2-slice") {
    preset.config = kimi_k2_slice();
  } else {
    throw_error(ErrorCode::kUsage, "options.preset {} is not known: choose one of {}", name,
                all_names());
  }
  if (layers && (*layers < 1 || *layers > kMaxLayers))
    throw_error(ErrorCode::kUsage, "options.layers {} is out of range: give 1 to {}", *layers,
                kMaxLayers);
  preset.config.layer_count = layers.value_or(preset.config.layer_count);
  preset.config.layer_is_moe.assign(preset.config.layer_count, true);
  preset.config.layer_is_moe[0] = false;
  if (name == "tiny-mtp") preset.config.mtp_layer_count = 1;
  if (name == "tiny-eagle3") preset.draft = tiny_draft(preset.config);
  return preset;
}

}  // namespace foresail
