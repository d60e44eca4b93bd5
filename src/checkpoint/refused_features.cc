#include "checkpoint/refused_features.h"

#include <array>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace foresail {
namespace {

struct RefusedType {
  std::string_view model_type;
  std::string_view feature;
};

// Known relatives of MLA that need more than this engine has.
constexpr RefusedType kRefusedTypes[] = {
    {"deepseek_v32", "DeepSeek sparse attention (DSA indexer, index_topk) is not supported yet"},
    {"glm_moe_dsa", "DeepSeek sparse attention (DSA indexer, index_topk) is not supported yet"},
    {"deepseek_v4",
     "hyper-connections and compressed KV (hc_mult, compress_ratios) are not supported yet"},
    {"kimi_linear", "linear attention layers (KDA, linear_attn_config) are not supported yet"},
    {"kimi_k3", "linear attention layers (KDA, linear_attn_config) are not supported yet"},
    {"longcat_flash", "shortcut-connected double layers and zero experts are not supported yet"},
    {"bailing_hybrid", "hybrid linear attention layers are not supported yet"},
    {"bailing_moe_v2_5", "hybrid linear attention layers are not supported yet"},
    {"bailing_moe_linear", "hybrid linear attention layers are not supported yet"},
    {"ling_v3", "hybrid linear attention layers (KDA) are not supported yet"},
};

struct RefusedKey {
  std::string_view key;
  std::string_view feature;
};

// Any value but null, false, 0 and the empty list or object asks for the feature.
constexpr RefusedKey kRefusedKeys[] = {
    {"linear_attn_config", "linear attention layers (KDA) are not supported yet"},
    {"kda_layers", "linear attention layers (KDA) are not supported yet"},
    {"layer_group_size", "hybrid linear attention layers are not supported yet"},
    {"hc_mult", "hyper-connections are not supported yet"},
    {"compress_ratios", "compressed KV layers are not supported yet"},
    {"compress_rope_theta", "compressed KV layers are not supported yet"},
    {"index_topk", "DeepSeek sparse attention (DSA indexer) is not supported yet"},
    {"index_n_heads", "DeepSeek sparse attention (DSA indexer) is not supported yet"},
    {"index_head_dim", "DeepSeek sparse attention (DSA indexer) is not supported yet"},
    {"indexer_types", "DeepSeek sparse attention (DSA indexer) is not supported yet"},
    {"zero_expert_num", "zero (identity) experts are not supported yet"},
    {"zero_expert_type", "zero (identity) experts are not supported yet"},
    {"mla_use_nope", "MLA without rotary positions is not supported yet"},
    {"mla_use_output_gate", "gated attention output is not supported yet"},
    {"use_output_gate", "gated attention output is not supported yet"},
    {"attn_output_gate", "gated attention output is not supported yet"},
    {"attention_gate", "gated attention output is not supported yet"},
    {"use_gated_attention", "gated attention output is not supported yet"},
    {"gated_attention", "gated attention output is not supported yet"},
    {"attn_res_block_size", "attention residuals are not supported yet"},
    {"swiglu_limit", "clamped SwiGLU is not supported yet"},
    {"swiglu_limits", "clamped SwiGLU is not supported yet"},
    {"num_hash_layers", "hash-routed layers are not supported yet"},
    {"o_lora_rank", "low-rank attention output is not supported yet"},
    {"o_groups", "grouped attention output is not supported yet"},
    {"sliding_window", "sliding-window attention is not supported yet"},
    {"attention_sink", "attention sinks are not supported yet"},
    {"use_attention_sink", "attention sinks are not supported yet"},
    {"routed_expert_hidden_size", "experts in a latent space are not supported yet"},
    {"moe_latent_size", "experts in a latent space are not supported yet"},
    {"latent_moe_use_norm", "experts in a latent space are not supported yet"},
    {"mla_scale_q_lora", "scaled MLA latents are not supported yet"},
    {"mla_scale_kv_lora", "scaled MLA latents are not supported yet"},
    {"ngram_vocab_size_ratio", "n-gram embeddings are not supported yet"},
    {"emb_neighbor_num", "n-gram embeddings are not supported yet"},
    {"qk_layernorm", "query/key norms inside MLA are not supported yet"},
    {"use_qk_norm", "query/key norms inside MLA are not supported yet"},
    {"attn_logit_softcapping", "logit soft-capping is not supported yet"},
    {"final_logit_softcapping", "logit soft-capping is not supported yet"},
    {"mlp_bias", "biases in the MLP are not supported yet"},
    {"moe_bias", "biases in the experts are not supported yet"},
    {"rope_mscale", "a rope_mscale of its own is not supported yet"},
    {"altup_num_inputs", "alternating updates are not supported"},
    {"hidden_size_per_layer_input", "per-layer embeddings are not supported"},
};

// Keys that are read, or that do not change what the model computes.
const std::set<std::string_view>& known_keys() {
  static const std::set<std::string_view> kKeys = {
      // read
      "model_type", "architectures", "vocab_size", "hidden_size", "num_hidden_layers",
      "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank",
      "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "intermediate_size",
      "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
      "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "scoring_func",
      "topk_method", "first_k_dense_replace", "moe_layer_freq", "mlp_layer_types", "layer_types",
      "rms_norm_eps", "attention_bias", "tie_word_embeddings", "hidden_act",
      "max_position_embeddings", "original_max_position_embeddings", "num_nextn_predict_layers",
      "num_mtp_layers", "rope_theta", "rope_scaling", "rope_parameters", "rope_interleave",
      "partial_rotary_factor", "llama_4_scaling", "scale_emb", "scale_depth", "dim_model_base",
      "quantization_config", "qk_head_dim", "head_dim",
      // without effect on inference
      "attention_dropout", "aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "ep_size",
      "pretraining_tp", "output_attentions", "use_bfloat16", "is_encoder_decoder",
      "tie_encoder_decoder", "chunk_size_feed_forward", "cross_attention_hidden_size",
      "add_cross_attention", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
      "moe_router_dtype", "router_dtype", "output_router_logits", "embedding_initializer_range",
      "initializer_range", "norm_initializer_range", "_attn_implementation",
      "_attn_implementation_internal", "attn_implementation", "_experts_implementation", "use_mla",
      "attention_probs_dropout_prob", "router_jitter_noise",

      "use_flash_attention", "max_window_layers"};
  return kKeys;
}

// An unknown key with one of these in its name may change the maths.
constexpr std::string_view kMathsWords[] = {
    "attn",   "attention",  "gate",   "rope",   "rotary",   "norm",     "scal",   "mla_",
    "moe",    "expert",     "index",  "hc_",    "compress", "residual", "window", "softcap",
    "sink",   "activation", "swiglu", "router", "lora",     "conv",     "ssm",    "mamba",
    "linear", "multiplier", "clamp",  "bias",   "engram",   "ngram",    "hash"};

bool asks_for_something(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0.0;
  return !value.empty();
}

bool generation_default(std::string_view key) {
  // Every PretrainedConfig of transformers 4 carries these.
  return key == "length_penalty" || key == "diversity_penalty" ||
         key == "exponential_decay_length_penalty";
}

}  // namespace

void refuse_unsupported_model_type(const ConfigFields& fields) {
  if (!fields.has("model_type")) return;
  const std::string type = fields.text("model_type");
  for (const RefusedType& refused : kRefusedTypes)
    if (type == refused.model_type)
      throw_model_error("{}: model_type \"{}\": {}", fields.where(), type, refused.feature);
}

void refuse_unsupported_features(const ConfigFields& fields) {
  refuse_unsupported_model_type(fields);
  for (const RefusedKey& refused : kRefusedKeys)
    if (fields.object().contains(refused.key) &&
        asks_for_something(*fields.object().find(refused.key)))
      throw_model_error("{}: {}: {}", fields.where(), fields.full_key(refused.key),
                        refused.feature);
  for (const auto& [key, value] : fields.object().items()) {
    if (known_keys().contains(key) || generation_default(key) || !asks_for_something(value))
      continue;
    for (std::string_view word : kMathsWords) {
      if (key.find(word) == std::string::npos) continue;
      fields.fail(key, "Foresail does not know this key and it may change what the model computes");
    }
  }
}

}  // namespace foresail
