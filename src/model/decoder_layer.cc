#include "model/decoder_layer.h"

namespace foresail {
namespace {

std::variant<GatedMlp, MixtureOfExperts> load_feed_forward(const ModelConfig& config,
                                                           WeightLoader& loader,
                                                           const std::string& prefix, bool is_moe) {
  if (is_moe) return MixtureOfExperts(config, loader, prefix);
  return GatedMlp(loader, prefix, config.hidden_dim, config.intermediate_dim);
}

}  // namespace

DecoderLayer::DecoderLayer(const ModelConfig& config, WeightLoader& loader,
                           const std::string& prefix, bool is_moe)
    : eps_(static_cast<float>(config.rms_norm_eps)),
      residual_scale_(static_cast<float>(config.residual_scale)),
      input_norm_(loader.vector(prefix + "input_layernorm.weight", config.hidden_dim)),
      post_attention_norm_(
          loader.vector(prefix + "post_attention_layernorm.weight", config.hidden_dim)),
      attention_(config, loader, prefix + "self_attn.", config.hidden_dim),
      feed_forward_(load_feed_forward(config, loader, prefix + "mlp.", is_moe)) {}

void DecoderLayer::forward(Pass& pass, const LatentCache& cache, const MatrixView& h) const {
  Arena::Scope scope(pass.arena);
  const MatrixView normed = pass.act(h.cols);
  attention_.forward(pass, h, {input_norm_.as<float>(), eps_, normed}, cache, h);
  const RowNorm norm = {post_attention_norm_.as<float>(), eps_, normed};
  if (const auto* mlp = std::get_if<GatedMlp>(&feed_forward_))
    mlp->forward(pass, h, norm, residual_scale_, h);
  else
    std::get<MixtureOfExperts>(feed_forward_).forward(pass, h, norm, h);
}

}  // namespace foresail
