// config.json of every family -> ModelConfig. Class defaults are those of transformers.
#include <fmt/core.h>

#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/draft_head_signs.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/model_config.h"
#include "checkpoint/moe_parser.h"
#include "checkpoint/quantization_parser.h"
#include "checkpoint/refused_features.h"
#include "checkpoint/rope_parser.h"

namespace foresail {
namespace {

constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

struct FamilyName {
  std::string_view name;    // model_type or architecture
  std::string_view family;  // whose maths it has
};

constexpr FamilyName kFamilies[] = {
    {"deepseek_v2", "deepseek_v2"},
    {"deepseek_v3", "deepseek_v3"},
    {"kimi_k2", "deepseek_v3"},
    {"glm4_moe_lite", "glm4_moe_lite"},
    {"youtu", "youtu"},
    {"youtu_llm", "youtu"},
    {"minicpm3", "minicpm3"},
    {"mistral4", "mistral4"},
    // Releases with a model_type of their own that name a known class.
    {"DeepseekV2ForCausalLM", "deepseek_v2"},
    {"DeepseekV3ForCausalLM", "deepseek_v3"},
    {"Glm4MoeLiteForCausalLM", "glm4_moe_lite"},
    {"YoutuForCausalLM", "youtu"},
    {"MiniCPM3ForCausalLM", "minicpm3"},
    {"Mistral4ForCausalLM", "mistral4"},
};

std::string_view family_of(std::string_view name) {
  for (const FamilyName& entry : kFamilies)
    if (entry.name == name) return entry.family;
  return {};
}

// Of EAGLE heads: config.json looks like a model's, and in the MLA ones even the family is known.
void refuse_draft_head(const ConfigFields& fields, const std::string& architecture) {
  const DraftHeadSigns signs = draft_head_signs(fields, architecture);
  if (signs == DraftHeadSigns::kNone) return;
  fields.fail(
      "architectures",
      fmt::format(
          "this is a draft head, not a model: give its folder to "
          "options.speculative.draft_model_path, with options.speculative.algorithm {}, and "
          "the model that it was trained for as options.model_path",
          signs == DraftHeadSigns::kEagle3 ? "EAGLE3" : "EAGLE"));
}

// The maths family; config.family keeps the model_type as written.
std::string_view read_names(const ConfigFields& fields, ModelConfig& config) {
  config.architecture = first_architecture(fields);
  refuse_draft_head(fields, config.architecture);
  config.family = fields.text_or("model_type", "");
  std::string_view family = family_of(config.family);
  if (family.empty()) family = family_of(config.architecture);
  if (family.empty() && config.family.empty())
    fields.refuse("model_type", "is absent: add it, for example \"deepseek_v3\"");
  if (family.empty())
    fields.fail(
        "model_type",
        "this family is not supported (deepseek_v2, deepseek_v3, kimi_k2, kimi_k25, kimi_vl, "
        "glm4_moe_lite, youtu, minicpm3 and mistral4 are)");
  return family;
}

void read_dimensions(const ConfigFields& fields, std::string_view family, ModelConfig& config) {
  config.vocab_size = fields.integer("vocab_size", 1, kMaxVocab);
  config.hidden_dim = fields.integer("hidden_size", 1, kMaxDim);
  config.layer_count = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.head_count = fields.integer("num_attention_heads", 1, 65536);
  if (fields.integer_or("num_key_value_heads", 1, 65536, config.head_count) != config.head_count)
    fields.fail("num_key_value_heads",
                fmt::format("MLA needs it equal to num_attention_heads {}", config.head_count));
  config.q_lora_rank = fields.has("q_lora_rank") ? fields.integer("q_lora_rank", 1, kMaxDim) : 0;
  config.kv_lora_rank = fields.integer("kv_lora_rank", 1, kMaxDim);
  config.nope_dim = fields.integer("qk_nope_head_dim", 1, 65536);
  config.rope_dim = fields.integer("qk_rope_head_dim", 2, 65536);
  if (config.rope_dim % 2 != 0)
    fields.fail("qk_rope_head_dim", "rotary positions need an even number");
  config.value_dim = family == "minicpm3" && !fields.has("v_head_dim")
                         ? config.hidden_dim / config.head_count
                         : fields.integer("v_head_dim", 1, 65536);
  if (config.value_dim < 1)
    fields.fail("num_attention_heads", "hidden_size / it must be at least 1");
  const int64_t head_dim = config.nope_dim + config.rope_dim;
  if (fields.integer_or("qk_head_dim", 1, 1 << 20, head_dim) != head_dim)
    fields.fail("qk_head_dim", fmt::format("qk_nope_head_dim + qk_rope_head_dim is {}", head_dim));
  config.intermediate_dim = fields.integer("intermediate_size", 1, kMaxDim);
  config.max_positions = fields.integer("max_position_embeddings", 1, kMaxPositions);
}

void read_layer_types(const ConfigFields& fields) {
  if (!fields.has("layer_types")) return;
  const Json& types = fields.at("layer_types");
  if (!types.is_array()) fields.fail("layer_types", "it must be a list");
  for (const Json& type : types)
    if (type != "full_attention")
      fields.refuse("layer_types", fmt::format("holds {}: only full_attention is supported",
                                               json_text(type).substr(0, 60)));
}

void read_token_ids(const ConfigFields& fields, ModelConfig& config) {
  if (fields.has("bos_token_id")) {
    std::vector<int64_t> ids;
    read_token_ids(fields, "bos_token_id", config.vocab_size, ids);
    if (!ids.empty()) config.bos_id = ids.front();
  }
  read_token_ids(fields, "eos_token_id", config.vocab_size, config.eos_ids);
}

void read_family_scales(const ConfigFields& fields, std::string_view family, ModelConfig& config) {
  if (family != "minicpm3") {
    for (std::string_view key : {"scale_emb", "scale_depth", "dim_model_base"})
      if (fields.has(key)) fields.fail(key, "only minicpm3 scales its embeddings and residuals");
    return;
  }
  // transformers' defaults are those of the released model; null means no scaling.
  const bool names_depth = fields.object().contains("scale_depth");
  const bool names_base = fields.object().contains("dim_model_base");
  config.embedding_scale = fields.number_or("scale_emb", 1e-6, 1e6, 12.0);
  if (fields.has("scale_depth") || !names_depth)
    config.residual_scale = fields.number_or("scale_depth", 1e-6, 1e6, 1.4) /
                            std::sqrt(static_cast<double>(config.layer_count));
  if (fields.has("dim_model_base") || !names_base)
    config.logit_scale = fields.number_or("dim_model_base", 1e-6, 1e9, 256.0) /
                         static_cast<double>(config.hidden_dim);
}

void check_activation(const ConfigFields& fields) {
  if (fields.text_or("hidden_act", "silu") != "silu")
    fields.fail("hidden_act", "only silu is supported");
}

}  // namespace

ModelConfig parse_model_config(const std::string& config_json, const std::string& where) {
  const Result<Json> parsed = parse_json(config_json);
  if (!parsed) throw_model_error("{}: {}", where, parsed.error().message);
  const ConfigFields top(*parsed, where);

  ModelConfig config;
  config.wrapped = top.has("text_config");
  const ConfigFields text = config.wrapped ? top.child("text_config") : top;
  if (config.wrapped) refuse_unsupported_model_type(top);
  refuse_unsupported_features(text);

  const std::string_view family = read_names(text, config);
  if (config.architecture.empty()) config.architecture = first_architecture(top);
  read_dimensions(text, family, config);
  read_layer_types(text);
  check_activation(text);
  parse_moe(text, family, config);
  config.rope = parse_rope(text, family, config);
  config.rms_norm_eps = text.number_or(
      "rms_norm_eps", 1e-12, 1.0, family == "glm4_moe_lite" || family == "minicpm3" ? 1e-5 : 1e-6);
  config.attention_bias = text.boolean_or("attention_bias", false);
  const bool tied_by_default = family == "youtu" || family == "minicpm3";
  const ConfigFields& tie_owner = text.has("tie_word_embeddings") ? text : top;
  config.tied_embeddings = tie_owner.boolean_or("tie_word_embeddings", tied_by_default);
  config.mtp_layer_count = text.integer_or(
      text.has("num_nextn_predict_layers") ? "num_nextn_predict_layers" : "num_mtp_layers", 0, 64,
      0);
  read_token_ids(text, config);
  if (config.wrapped) {
    if (!config.bos_id) {
      ModelConfig outer = config;
      read_token_ids(top, outer);
      config.bos_id = outer.bos_id;
    }
    read_token_ids(top, "eos_token_id", config.vocab_size, config.eos_ids);
  }
  config.torch_dtype =
      text.text_or("dtype", text.text_or("torch_dtype", top.text_or("dtype", "bfloat16")));
  read_family_scales(text, family, config);
  config.quantization = parse_quantization(text);
  if (config.quantization.empty() && config.wrapped) config.quantization = parse_quantization(top);
  return config;
}

}  // namespace foresail
