#include "model/mtp_head.h"

namespace foresail {
namespace {

std::string layer_prefix(const ModelConfig& config, int64_t index) {
  return "model.layers." + std::to_string(config.layer_count + index) + ".";
}

}  // namespace

bool MtpHead::present(const ModelConfig& config, const WeightLoader& loader) {
  return loader.has(layer_prefix(config, 0) + "eh_proj.weight");
}

MtpHead::MtpHead(const MlaModel& target, WeightLoader& loader, int64_t index)
    : target_(target), arena_(loader.kernels().memory()) {
  const ModelConfig& config = target.config();
  const std::string prefix = layer_prefix(config, index);
  const int64_t hidden_dim = config.hidden_dim;
  embedding_norm_ = loader.vector(prefix + "enorm.weight", hidden_dim);
  hidden_norm_ = loader.vector(prefix + "hnorm.weight", hidden_dim);
  head_norm_ = loader.vector(prefix + "shared_head.norm.weight", hidden_dim);
  eh_proj_ = loader.matrix(prefix + "eh_proj.weight", hidden_dim, 2 * hidden_dim);
  const bool is_moe = loader.has(prefix + "mlp.gate.weight");
  layer_ = std::make_unique<DecoderLayer>(config, loader, prefix, is_moe);
  // Releases differ in whether they repeat the embedding and the head; a copy that is there wins.
  if (loader.has(prefix + "embed_tokens.weight")) {
    own_embedding_ = load_embedding(loader, prefix + "embed_tokens.weight", config);
    own_embedding_.move_to(loader.kernels().memory());
  }
  if (loader.has(prefix + "shared_head.head.weight"))
    own_head_ = loader.matrix(prefix + "shared_head.head.weight", config.vocab_size, hidden_dim);
}

DraftHead::Output MtpHead::forward(const DraftBatch& batch, std::span<const LatentCache> caches) {
  arena_.reset();
  KernelSet& kernels = target_.kernels();
  const ModelConfig& config = target_.config();
  const int64_t hidden_dim = config.hidden_dim;
  const float eps = static_cast<float>(config.rms_norm_eps);
  const std::vector<float> scale = target_.query_scale(batch.positions);
  Pass pass{kernels,         arena_,
            batch.positions, batch.slots,
            batch.sequences, AttentionPath::kAbsorbed,
            target_.rope(),  scale.empty() ? nullptr : scale.data()};
  const auto selected = static_cast<int64_t>(batch.selected_rows.size());
  const MatrixView given = batch.placed_states(kernels.memory(), arena_);
  const MatrixView picked = scratch_matrix(arena_, DType::kF32, selected, hidden_dim);
  const MatrixView states = scratch_matrix(arena_, DType::kF32, selected, hidden_dim);
  const MatrixView logits = scratch_matrix(arena_, DType::kF32, selected, config.vocab_size);
  if (kernels.begin_pass(batch.inputs(work_id_, scale, caches))) return {states, logits};

  const EmbeddingTable& embedding = own_embedding_.present() ? own_embedding_ : target_.embedding();
  const MatrixView embedded = pass.f32(hidden_dim);
  kernels.embed(batch.next_tokens, embedding.view(), embedding.scale, embedded);
  const MatrixView both = pass.act(2 * hidden_dim);
  kernels.rms_norm(embedded, embedding_norm_.as<float>(), eps, column_range(both, 0, hidden_dim));
  kernels.rms_norm(given, hidden_norm_.as<float>(), eps,
                   column_range(both, hidden_dim, hidden_dim));
  const MatrixView h = pass.f32(hidden_dim);
  kernels.linear(both, *eh_proj_, nullptr, 1.0f, false, h);
  layer_->forward(pass, caches[0], h);

  if (selected > 0) {
    kernels.gather_rows(h, batch.selected_rows, picked);
    kernels.rms_norm(picked, head_norm_.as<float>(), eps, states);
    kernels.linear(states, own_head_ ? *own_head_ : target_.head(), nullptr, 1.0f, false, logits);
    batch.choose(kernels, logits, nullptr, states);
  }
  kernels.end_pass();
  return {states, logits};
}

std::vector<CacheShape> MtpHead::cache_shapes() const {
  const ModelConfig& config = target_.config();
  return {{static_cast<int>(config.kv_lora_rank), static_cast<int>(config.rope_dim)}};
}

std::vector<int> MtpHead::target_layers() const {
  return {HiddenCapture::kAfterFinalNorm};
}

}  // namespace foresail
