// The second half of a layer: a gated MLP, or routed experts with an optional shared expert.
#pragma once

#include <string>
#include <vector>

#include "model/pass.h"
#include "model/weight_loader.h"

namespace foresail {

// down(silu(gate x) * up x)
class GatedMlp {
 public:
  GatedMlp(WeightLoader& loader, const std::string& prefix, int64_t hidden_dim, int64_t inner_dim);
  // h f32 [T, H] += scale * mlp(norm(x)); x [T, H] act, or f32 where it is normed.
  void forward(Pass& pass, const MatrixView& x, const RowNorm& norm, float scale,
               const MatrixView& h) const;
  GatedScratch scratch(Pass& pass) const {
    return {pass.f32(2 * inner_dim_), pass.act(inner_dim_)};
  }
  ExpertWeights weights() const { return {gate_up_.get(), down_.get()}; }

 private:
  int64_t inner_dim_;
  MatrixPtr gate_up_;  // [2 * inner, H]
  MatrixPtr down_;     // [H, inner]
};

class MixtureOfExperts {
 public:
  MixtureOfExperts(const ModelConfig& config, WeightLoader& loader, const std::string& prefix);
  // h f32 [T, H] += routed(norm(x)) + shared(norm(x)); x [T, H] act, or f32 where it is normed.
  void forward(Pass& pass, const MatrixView& x, const RowNorm& norm, const MatrixView& h) const;

 private:
  RouteParams params_;
  Buffer bias_;     // params_.bias points here
  MatrixPtr gate_;  // [E, H]
  std::vector<GatedMlp> experts_;
  std::vector<ExpertWeights> expert_weights_;
  std::vector<GatedMlp> shared_;  // empty or one
};

}  // namespace foresail
