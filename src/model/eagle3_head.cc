#include "model/eagle3_head.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace foresail {
namespace {

// d2t holds offsets: target id = draft id + d2t[draft id].
std::vector<int32_t> load_token_map(WeightLoader& loader, const DraftConfig& config) {
  if (!loader.has("d2t")) {
    if (config.draft_vocab_size == config.mla.vocab_size) return {};
    throw_model_error(
        "the draft head has {} tokens of the target's {} but no tensor d2t that maps them",
        config.draft_vocab_size, config.mla.vocab_size);
  }
  const HostTensor offsets = loader.tensor("d2t", {config.draft_vocab_size});
  if (offsets.dtype != DType::kI64)
    throw_model_error("d2t is {}, expected I64", dtype_name(offsets.dtype));
  std::vector<int32_t> result;
  for (int64_t i = 0; i < config.draft_vocab_size; ++i) {
    const int64_t offset = offsets.data.as<int64_t>()[i];
    if (offset < -i || offset >= config.mla.vocab_size - i)
      throw_model_error("d2t[{}] = {} leaves the target's vocabulary of {}", i, offset,
                        config.mla.vocab_size);
    result.push_back(static_cast<int32_t>(i + offset));
  }
  return result;
}

}  // namespace

Eagle3Head::Eagle3Head(const DraftConfig& config, const MlaModel& target, WeightLoader& loader,
                       WeightLoader& target_loader)
    : config_(config),
      target_(target),
      target_token_(load_token_map(loader, config)),
      rope_(plain_inv_freq(config.mla.rope.theta, config.mla.rope_dim), 1.0,
            config.mla.rope.interleaved ? RopeLayout::kAdjacentPairs : RopeLayout::kHalfSplit,
            target.context_len(), loader.kernels().memory()),
      arena_(loader.kernels().memory()) {
  const int64_t hidden_dim = config.mla.hidden_dim;
  const int64_t states_dim =
      static_cast<int64_t>(config.target_layers.size()) * target.config().hidden_dim;
  // Two name sets are in use for the one layer.
  const std::string layer = loader.has("midlayer.hidden_norm.weight") ? "midlayer." : "layers.0.";
  fc_ = loader.matrix("fc.weight", hidden_dim, states_dim);
  for (size_t i = 0; config.fc_norm && i < config.target_layers.size(); ++i)
    fc_norms_.push_back(
        loader.vector("fc_norm." + std::to_string(i) + ".weight", target.config().hidden_dim));
  if (config.norm_before_fc) fc_input_norm_ = loader.vector("input_norm.weight", states_dim);
  embedding_norm_ = loader.vector(layer + "input_layernorm.weight", hidden_dim);
  hidden_norm_ = loader.vector(layer + "hidden_norm.weight", hidden_dim);
  post_attention_norm_ = loader.vector(layer + "post_attention_layernorm.weight", hidden_dim);
  head_norm_ = loader.vector("norm.weight", hidden_dim);
  if (config.is_mla)
    latent_attention_ =
        std::make_unique<MlaAttention>(config.mla, loader, layer + "self_attn.", 2 * hidden_dim);
  else
    grouped_attention_ =
        std::make_unique<GroupedAttention>(config, loader, layer + "self_attn.", 2 * hidden_dim);
  mlp_ =
      std::make_unique<GatedMlp>(loader, layer + "mlp.", hidden_dim, config.mla.intermediate_dim);
  if (loader.has("embed_tokens.weight")) {
    own_embedding_ = load_embedding(loader, "embed_tokens.weight", config.mla);
    own_embedding_.move_to(loader.kernels().memory());
  }
  if (loader.has("lm_head.weight")) {
    head_ = loader.matrix("lm_head.weight", config.draft_vocab_size, hidden_dim);
  } else {
    if (hidden_dim != target.config().hidden_dim)
      throw_model_error(
          "the draft head has no lm_head.weight and cannot use the target's, because its "
          "hidden_size {} differs from the target's {}: add lm_head.weight",
          hidden_dim, target.config().hidden_dim);
    logit_scale_ = static_cast<float>(target.config().logit_scale);
    if (!target_token_.empty()) head_ = target.load_head_rows(target_token_, target_loader);
  }
  if (!target_token_.empty()) {
    Buffer map(target_token_.size() * sizeof(int32_t));
    std::memcpy(map.data(), target_token_.data(), map.size_bytes());
    placed_map_ = moved_to(loader.kernels().memory(), std::move(map));
  }
  const int64_t embedding_dim = own_embedding_.present() ? hidden_dim : target.config().hidden_dim;
  if (embedding_dim != hidden_dim)
    throw_model_error(
        "the draft head has no embed_tokens.weight and its hidden_size {} differs from the "
        "target's {}",
        hidden_dim, embedding_dim);
}

MatrixView Eagle3Head::fuse(Pass& pass, const MatrixView& states) const {
  KernelSet& kernels = pass.kernels;
  const float eps = static_cast<float>(config_.mla.rms_norm_eps);
  const MatrixView input = pass.act(states.cols);
  if (config_.norm_before_fc) {
    kernels.rms_norm(states, fc_input_norm_.as<float>(), eps, input);
  } else if (config_.fc_norm) {
    const int64_t width = target_.config().hidden_dim;
    for (size_t i = 0; i < fc_norms_.size(); ++i)
      kernels.rms_norm(column_range(states, i * width, width), fc_norms_[i].as<float>(), eps,
                       column_range(input, i * width, width));
  } else {
    kernels.convert(states, input);
  }
  const MatrixView fused = pass.f32(config_.mla.hidden_dim);
  kernels.linear(input, *fc_, nullptr, 1.0f, false, fused);
  return fused;
}

DraftHead::Output Eagle3Head::forward(const DraftBatch& batch,
                                      std::span<const LatentCache> caches) {
  arena_.reset();
  KernelSet& kernels = target_.kernels();
  const int64_t hidden_dim = config_.mla.hidden_dim;
  const float eps = static_cast<float>(config_.mla.rms_norm_eps);
  Pass pass{kernels,     arena_,          batch.positions,
            batch.slots, batch.sequences, AttentionPath::kAbsorbed,
            rope_.view()};
  const auto selected = static_cast<int64_t>(batch.selected_rows.size());
  const MatrixView given = batch.placed_states(kernels.memory(), arena_);
  const MatrixView picked = scratch_matrix(arena_, DType::kF32, selected, hidden_dim);
  const MatrixView normed_states = scratch_matrix(arena_, DType::kF32, selected, hidden_dim);
  const MatrixView logits = scratch_matrix(arena_, DType::kF32, selected, config_.draft_vocab_size);
  const Output output = {config_.norm_output ? normed_states : picked, logits};
  if (kernels.begin_pass(batch.inputs(work_id_, {}, caches))) return output;

  const EmbeddingTable& embedding = own_embedding_.present() ? own_embedding_ : target_.embedding();
  const MatrixView embedded = pass.f32(hidden_dim);
  kernels.embed(batch.next_tokens, embedding.view(), embedding.scale, embedded);
  const MatrixView state = batch.recycled ? given : fuse(pass, given);
  const MatrixView both = pass.act(2 * hidden_dim);
  kernels.rms_norm(embedded, embedding_norm_.as<float>(), eps, column_range(both, 0, hidden_dim));
  kernels.rms_norm(state, hidden_norm_.as<float>(), eps,
                   column_range(both, hidden_dim, hidden_dim));
  const MatrixView y = pass.f32(hidden_dim);
  kernels.convert(config_.norm_before_residual ? column_range(both, hidden_dim, hidden_dim) : state,
                  y);
  if (config_.is_mla)
    latent_attention_->forward(pass, both, {}, caches[0], y);
  else
    grouped_attention_->forward(pass, both, caches, y);
  mlp_->forward(pass, y, {post_attention_norm_.as<float>(), eps, pass.act(hidden_dim)}, 1.0f, y);

  if (selected > 0) {
    kernels.gather_rows(y, batch.selected_rows, picked);
    kernels.rms_norm(picked, head_norm_.as<float>(), eps, normed_states);
    kernels.linear(normed_states, head_ ? *head_ : target_.head(), nullptr, logit_scale_, false,
                   logits);
    batch.choose(kernels, logits, target_token_.empty() ? nullptr : placed_map_.as<int32_t>(),
                 output.states);
  }
  kernels.end_pass();
  return output;
}

std::vector<CacheShape> Eagle3Head::cache_shapes() const {
  if (config_.is_mla)
    return {{static_cast<int>(config_.mla.kv_lora_rank), static_cast<int>(config_.mla.rope_dim)}};
  return grouped_cache_shapes(config_);
}

}  // namespace foresail
