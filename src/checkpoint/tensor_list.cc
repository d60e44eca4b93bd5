#include "checkpoint/tensor_list.h"

#include <utility>

#include "base/checked_math.h"
#include "base/error.h"

namespace foresail {
namespace {

class ListBuilder {
 public:
  explicit ListBuilder(const ModelConfig& config) : config_(config) {}

  void add(std::string name, std::vector<int64_t> shape, DType dtype = DType::kBF16) {
    specs_.push_back({std::move(name), std::move(shape), dtype});
  }

  void add_decoder_layer(const std::string& layer, bool is_moe) {
    add(layer + "input_layernorm.weight", {config_.hidden_dim});
    add_attention(layer + "self_attn.");
    add(layer + "post_attention_layernorm.weight", {config_.hidden_dim});
    if (is_moe) {
      add_moe(layer + "mlp.");
    } else {
      add_mlp(layer + "mlp.", config_.intermediate_dim);
    }
  }

  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  void add_attention(const std::string& attention) {
    const ModelConfig& c = config_;
    if (c.q_lora_rank == 0) {
      add(attention + "q_proj.weight", {c.query_dim(), c.hidden_dim});
    } else {
      add(attention + "q_a_proj.weight", {c.q_lora_rank, c.hidden_dim});
      if (c.attention_bias) add(attention + "q_a_proj.bias", {c.q_lora_rank});
      add(attention + "q_a_layernorm.weight", {c.q_lora_rank});
      add(attention + "q_b_proj.weight", {c.query_dim(), c.q_lora_rank});
    }
    add(attention + "kv_a_proj_with_mqa.weight", {c.latent_row_dim(), c.hidden_dim});
    if (c.attention_bias) add(attention + "kv_a_proj_with_mqa.bias", {c.latent_row_dim()});
    add(attention + "kv_a_layernorm.weight", {c.kv_lora_rank});
    add(attention + "kv_b_proj.weight",
        {c.head_count * (c.nope_dim + c.value_dim), c.kv_lora_rank});
    add(attention + "o_proj.weight", {c.hidden_dim, c.head_count * c.value_dim});
    if (c.attention_bias) add(attention + "o_proj.bias", {c.hidden_dim});
  }

  void add_mlp(const std::string& mlp, int64_t inner_dim) {
    add(mlp + "gate_proj.weight", {inner_dim, config_.hidden_dim});
    add(mlp + "up_proj.weight", {inner_dim, config_.hidden_dim});
    add(mlp + "down_proj.weight", {config_.hidden_dim, inner_dim});
  }

  void add_moe(const std::string& mlp) {
    const MoeConfig& moe = config_.moe;
    add(mlp + "gate.weight", {moe.expert_count, config_.hidden_dim});
    if (moe.method == GateMethod::kNoAuxTc)
      add(mlp + "gate.e_score_correction_bias", {moe.expert_count}, DType::kF32);
    for (int64_t expert = 0; expert < moe.expert_count; ++expert)
      add_mlp(mlp + "experts." + std::to_string(expert) + ".", moe.inner_dim);
    if (moe.shared_expert_count > 0)
      add_mlp(mlp + "shared_experts.", moe.inner_dim * moe.shared_expert_count);
  }

  const ModelConfig& config_;
  std::vector<TensorSpec> specs_;
};

}  // namespace

uint64_t TensorSpec::element_count() const {
  std::optional<uint64_t> total = 1;
  for (const int64_t dim : shape)
    if (total) total = checked_mul(*total, static_cast<uint64_t>(dim));
  if (!total) throw_model_error("tensor {}: the product of its shape overflows", name);
  return *total;
}

uint64_t TensorSpec::size_bytes() const {
  const std::optional<uint64_t> total = checked_mul(element_count(), foresail::size_bytes(dtype));
  if (!total) throw_model_error("tensor {}: its size overflows", name);
  return *total;
}

std::vector<TensorSpec> all_tensors(const ModelConfig& config, int64_t mtp_layers) {
  ListBuilder list(config);
  const auto layer_name = [](int64_t layer) {
    return "model.layers." + std::to_string(layer) + ".";
  };
  list.add("model.embed_tokens.weight", {config.vocab_size, config.hidden_dim});
  for (int64_t layer = 0; layer < config.layer_count; ++layer)
    list.add_decoder_layer(layer_name(layer), config.layer_is_moe[layer]);
  list.add("model.norm.weight", {config.hidden_dim});
  if (!config.tied_embeddings) list.add("lm_head.weight", {config.vocab_size, config.hidden_dim});

  for (int64_t i = 0; i < mtp_layers; ++i) {
    const std::string layer = layer_name(config.layer_count + i);
    list.add(layer + "embed_tokens.weight", {config.vocab_size, config.hidden_dim});
    list.add(layer + "enorm.weight", {config.hidden_dim});
    list.add(layer + "hnorm.weight", {config.hidden_dim});
    list.add(layer + "eh_proj.weight", {config.hidden_dim, 2 * config.hidden_dim});
    list.add_decoder_layer(layer, config.moe.expert_count > 0);
    list.add(layer + "shared_head.norm.weight", {config.hidden_dim});
    list.add(layer + "shared_head.head.weight", {config.vocab_size, config.hidden_dim});
  }
  return list.take();
}

TensorTotals total_of(const std::vector<TensorSpec>& specs) {
  TensorTotals totals;
  for (const TensorSpec& spec : specs) {
    const auto size_total = checked_add(totals.size_bytes, spec.size_bytes());
    if (!size_total) throw_model_error("the model's size overflows 64 bits: correct config.json");
    totals.size_bytes = *size_total;
    totals.parameter_count += spec.element_count();
  }
  return totals;
}

}  // namespace foresail
