#include "model/feed_forward.h"

namespace foresail {

GatedMlp::GatedMlp(WeightLoader& loader, const std::string& prefix, int64_t hidden_dim,
                   int64_t inner_dim)
    : inner_dim_(inner_dim),
      gate_up_(loader.stacked(prefix + "gate_proj.weight", prefix + "up_proj.weight", inner_dim,
                              hidden_dim)),
      down_(loader.matrix(prefix + "down_proj.weight", hidden_dim, inner_dim)) {}

void GatedMlp::forward(Pass& pass, const MatrixView& x, const RowNorm& norm, float scale,
                       const MatrixView& h) const {
  Arena::Scope scope(pass.arena);
  pass.kernels.gated_mlp(x, norm, weights(), scale, scratch(pass), h);
}

namespace {

RouteParams route_params(const MoeConfig& moe) {
  RouteParams params;
  params.score = moe.scoring == GateScoring::kSigmoid ? GateScore::kSigmoid : GateScore::kSoftmax;
  if (moe.group_count > 1 && moe.method == GateMethod::kNoAuxTc)
    params.group_score = GroupScore::kTopTwoSum;
  if (moe.group_count > 1 && moe.method == GateMethod::kGroupLimitedGreedy)
    params.group_score = GroupScore::kMax;
  params.expert_count = static_cast<int>(moe.expert_count);
  params.top_k = static_cast<int>(moe.top_k);
  params.group_count = static_cast<int>(moe.group_count);
  params.top_groups = static_cast<int>(moe.top_groups);
  params.normalize = moe.normalize;
  params.scale = static_cast<float>(moe.routed_scale);
  return params;
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(const ModelConfig& config, WeightLoader& loader,
                                   const std::string& prefix)
    : params_(route_params(config.moe)),
      gate_(loader.matrix(prefix + "gate.weight", config.moe.expert_count, config.hidden_dim)) {
  const MoeConfig& moe = config.moe;
  if (moe.method == GateMethod::kNoAuxTc) {
    bias_ = loader.vector(prefix + "gate.e_score_correction_bias", moe.expert_count);
    params_.bias = bias_.as<float>();
  }
  for (int64_t expert = 0; expert < moe.expert_count; ++expert) {
    const std::string name = prefix + "experts." + std::to_string(expert) + ".";
    experts_.emplace_back(loader, name, config.hidden_dim, moe.inner_dim);
    expert_weights_.push_back(experts_.back().weights());
  }
  if (moe.shared_expert_count > 0)
    shared_.emplace_back(loader, prefix + "shared_experts.", config.hidden_dim,
                         moe.inner_dim * moe.shared_expert_count);
}

void MixtureOfExperts::forward(Pass& pass, const MatrixView& x, const RowNorm& norm,
                               const MatrixView& h) const {
  Arena::Scope scope(pass.arena);
  const int64_t choices = pass.row_count() * params_.top_k;
  Mixture mixture{gate_.get(), params_, expert_weights_, {}};
  MixtureScratch scratch;
  scratch.logits = pass.f32(params_.expert_count);
  scratch.ids = reinterpret_cast<int32_t*>(pass.arena.allocate(choices * sizeof(int32_t)));
  scratch.weights = reinterpret_cast<float*>(pass.arena.allocate(choices * sizeof(float)));
  if (!shared_.empty()) {
    mixture.shared = shared_[0].weights();
    scratch.shared = shared_[0].scratch(pass);
  }
  pass.kernels.mix_experts(x, norm, mixture, scratch, h);
}

}  // namespace foresail
