#include "checkpoint/config_writer.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace foresail {
namespace {

constexpr int kIndent = 2;

void add_rope(const ModelConfig& config, OrderedJson& out) {
  const RopeConfig& rope = config.rope;
  out["rope_theta"] = rope.theta;
  if (!rope.interleaved && config.family != "minicpm3") out["rope_interleave"] = false;
  OrderedJson scaling = OrderedJson::object();
  if (rope.scaling == RopeScaling::kYarn) {
    scaling["type"] = "yarn";
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    if (rope.mscale) scaling["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) scaling["mscale_all_dim"] = *rope.mscale_all_dim;
  } else if (rope.scaling == RopeScaling::kLongRope) {
    scaling["type"] = "longrope";
    scaling["short_factor"] = rope.short_factors;
    scaling["long_factor"] = rope.long_factors;
  }
  if (rope.scaling != RopeScaling::kNone) scaling["factor"] = rope.factor;
  if (rope.original_max_positions > 0)
    scaling["original_max_position_embeddings"] = rope.original_max_positions;
  if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
  if (rope.query_scaling_beta > 0.0) scaling["llama_4_scaling_beta"] = rope.query_scaling_beta;
  out["rope_scaling"] = scaling.empty() ? OrderedJson() : scaling;
}

void add_layer_kinds(const ModelConfig& config, OrderedJson& out) {
  const auto& sparse = config.layer_is_moe;
  if (config.family == "glm4_moe_lite") {
    OrderedJson types = OrderedJson::array();
    for (const bool is_moe : sparse) types.push_back(is_moe ? "sparse" : "dense");
    out["mlp_layer_types"] = types;
    return;
  }
  const auto first = std::find(sparse.begin(), sparse.end(), true);
  const int64_t dense_count = first - sparse.begin();
  const auto second = first == sparse.end() ? first : std::find(first + 1, sparse.end(), true);
  out["first_k_dense_replace"] = dense_count;
  // Layers are sparse where their index is a multiple of the frequency.
  out["moe_layer_freq"] = second != sparse.end() ? second - first
                          : dense_count > 0      ? dense_count
                                                 : config.layer_count;
}

void add_moe(const ModelConfig& config, OrderedJson& out) {
  const MoeConfig& moe = config.moe;
  if (moe.expert_count == 0) return;
  add_layer_kinds(config, out);
  out["n_routed_experts"] = moe.expert_count;
  out["num_experts_per_tok"] = moe.top_k;
  out["moe_intermediate_size"] = moe.inner_dim;
  out["n_shared_experts"] = moe.shared_expert_count;
  out["n_group"] = moe.group_count;
  out["topk_group"] = moe.top_groups;
  out["norm_topk_prob"] = moe.normalize;
  out["routed_scaling_factor"] = moe.routed_scale;
  out["scoring_func"] = moe.scoring == GateScoring::kSoftmax ? "softmax" : "sigmoid";
  out["topk_method"] = moe.method == GateMethod::kNoAuxTc  ? "noaux_tc"
                       : moe.method == GateMethod::kGreedy ? "greedy"
                                                           : "group_limited_greedy";
}

void add_token_ids(const ModelConfig& config, OrderedJson& out) {
  if (config.bos_id) out["bos_token_id"] = *config.bos_id;
  if (config.eos_ids.size() == 1) {
    out["eos_token_id"] = config.eos_ids.front();
  } else if (!config.eos_ids.empty()) {
    out["eos_token_id"] = config.eos_ids;
  }
}

}  // namespace

std::string to_config_json(const ModelConfig& config) {
  OrderedJson out;
  out["architectures"] = {config.architecture};
  out["model_type"] = config.family;
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_dim;
  out["num_hidden_layers"] = config.layer_count;
  out["num_attention_heads"] = config.head_count;
  out["num_key_value_heads"] = config.head_count;
  out["q_lora_rank"] = config.q_lora_rank > 0 ? OrderedJson(config.q_lora_rank) : OrderedJson();
  out["kv_lora_rank"] = config.kv_lora_rank;
  out["qk_nope_head_dim"] = config.nope_dim;
  out["qk_rope_head_dim"] = config.rope_dim;
  out["v_head_dim"] = config.value_dim;
  out["intermediate_size"] = config.intermediate_dim;
  add_moe(config, out);
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = config.rms_norm_eps;
  out["attention_bias"] = config.attention_bias;
  out["tie_word_embeddings"] = config.tied_embeddings;
  out["max_position_embeddings"] = config.max_positions;
  add_rope(config, out);
  out["num_nextn_predict_layers"] = config.mtp_layer_count;
  if (config.family == "minicpm3") {
    out["scale_emb"] = config.embedding_scale;
    out["scale_depth"] = config.residual_scale * std::sqrt(static_cast<double>(config.layer_count));
    out["dim_model_base"] = config.logit_scale * static_cast<double>(config.hidden_dim);
  }
  add_token_ids(config, out);
  out["torch_dtype"] = config.torch_dtype;
  return json_text(out, kIndent) + "\n";
}

std::string to_generation_config_json(const ModelConfig& config) {
  OrderedJson out;
  out["_from_model_config"] = true;
  add_token_ids(config, out);
  return json_text(out, kIndent) + "\n";
}

}  // namespace foresail
