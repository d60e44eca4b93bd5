// One latent-attention block: projections, rotation, cache write, attention, output projection.
// Both forms of models of this kind: absorbed (keys stay latent) and expanded (keys up-projected).
#pragma once

#include <string>
#include <vector>

#include "model/pass.h"
#include "model/weight_loader.h"

namespace foresail {

class MlaAttention {
 public:
  // `prefix` is the tensor prefix "model.layers.N.self_attn."; `input_dim` is H (2H for heads that
  // read two states).
  MlaAttention(const ModelConfig& config, WeightLoader& loader, const std::string& prefix,
               int64_t input_dim);

  // h f32 [T, H] += residual_scale * attention(norm(x)); x [T, input_dim] act, or f32 where it is
  // normed.
  void forward(Pass& pass, const MatrixView& x, const RowNorm& norm, const LatentCache& cache,
               const MatrixView& h) const;

 private:
  void attend_absorbed(Pass& pass, const MatrixView& q, const MatrixView& kv,
                       const LatentCache& cache, const MatrixView& out) const;
  void attend_expanded(Pass& pass, const MatrixView& q, const MatrixView& kv,
                       const LatentCache& cache, const MatrixView& out) const;

  int head_count_, nope_dim_, rope_dim_, value_dim_, latent_dim_;
  int64_t q_lora_rank_;
  float softmax_scale_, residual_scale_, latent_eps_;
  MatrixPtr q_proj_;     // [nh * (n + r), H] or null
  MatrixPtr q_a_, q_b_;  // [rq, H], [nh * (n + r), rq]
  MatrixPtr kv_a_;       // [c + r, H]
  MatrixPtr o_proj_;     // [H, nh * v]
  Buffer q_a_norm_, kv_a_norm_;
  Buffer q_a_bias_, kv_a_bias_, o_bias_;
  std::vector<MatrixPtr> w_uk_;    // per head [n, c]
  std::vector<MatrixPtr> w_uk_t_;  // per head [c, n]
  std::vector<MatrixPtr> w_uv_;    // per head [v, c]
};

}  // namespace foresail
