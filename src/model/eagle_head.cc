#include "model/eagle_head.h"

#include "base/error.h"

namespace foresail {

EagleHead::EagleHead(const DraftConfig& config, const MlaModel& target, WeightLoader& loader)
    : config_(config),
      target_(target),
      rope_(plain_inv_freq(config.mla.rope.theta, config.mla.rope_dim), 1.0, RopeLayout::kHalfSplit,
            target.context_len(), loader.kernels().memory()),
      arena_(loader.kernels().memory()) {
  const int64_t hidden_dim = config.mla.hidden_dim;
  if (hidden_dim != target.config().hidden_dim)
    throw_model_error(
        "the EAGLE head has hidden_size {} and the target {}: it uses the target's vocabulary "
        "head, so they must be equal",
        hidden_dim, target.config().hidden_dim);
  if (config.is_mla)
    throw_model_error("EAGLE heads with an MLA layer are not supported: only Llama layers are");
  fc_ = loader.matrix("fc.weight", hidden_dim, 2 * hidden_dim);
  fc_bias_ = loader.optional_vector("fc.bias", hidden_dim);
  attention_ =
      std::make_unique<GroupedAttention>(config, loader, "layers.0.self_attn.", hidden_dim);
  post_attention_norm_ = loader.vector("layers.0.post_attention_layernorm.weight", hidden_dim);
  mlp_ =
      std::make_unique<GatedMlp>(loader, "layers.0.mlp.", hidden_dim, config.mla.intermediate_dim);
  if (loader.has("embed_tokens.weight")) {
    own_embedding_ = load_embedding(loader, "embed_tokens.weight", config.mla);
    own_embedding_.move_to(loader.kernels().memory());
  }
}

DraftHead::Output EagleHead::forward(const DraftBatch& batch, std::span<const LatentCache> caches) {
  arena_.reset();
  KernelSet& kernels = target_.kernels();
  const int64_t hidden_dim = config_.mla.hidden_dim;
  Pass pass{.kernels = kernels,
            .arena = arena_,
            .positions = batch.positions,
            .slots = batch.slots,
            .sequences = batch.sequences,
            .path = AttentionPath::kAbsorbed,
            .rope = rope_.view()};
  const auto selected = static_cast<int64_t>(batch.selected_rows.size());
  const MatrixView given = batch.placed_states(kernels.memory(), arena_);
  const MatrixView states = scratch_matrix(arena_, DType::kF32, selected, hidden_dim);
  const MatrixView logits =
      scratch_matrix(arena_, DType::kF32, selected, target_.config().vocab_size);
  if (kernels.begin_pass(batch.inputs(work_id_, {}, caches))) return {states, logits};

  const EmbeddingTable& embedding = own_embedding_.present() ? own_embedding_ : target_.embedding();
  const MatrixView embedded = pass.f32(hidden_dim);
  kernels.embed(batch.next_tokens, embedding.view(), embedding.scale, embedded);
  const MatrixView both = pass.act(2 * hidden_dim);
  kernels.convert(embedded, column_range(both, 0, hidden_dim));
  kernels.convert(given, column_range(both, hidden_dim, hidden_dim));
  const MatrixView y = pass.f32(hidden_dim);
  kernels.linear(both, *fc_, fc_bias_.as<float>(), 1.0f, false, y);
  const MatrixView x = pass.act(hidden_dim);
  kernels.convert(y, x);
  attention_->forward(pass, x, caches, y);
  mlp_->forward(pass, y,
                {post_attention_norm_.as<float>(), static_cast<float>(config_.mla.rms_norm_eps), x},
                1.0f, y);

  if (selected > 0) {
    kernels.gather_rows(y, batch.selected_rows, states);
    kernels.linear(states, target_.head(), nullptr,
                   static_cast<float>(target_.config().logit_scale), false, logits);
    batch.choose(kernels, logits, nullptr, states);
  }
  kernels.end_pass();
  return {states, logits};
}

}  // namespace foresail
