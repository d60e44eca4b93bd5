// One layer of an MLA model: attention and feed-forward, each behind a norm and a residual.
#pragma once

#include <string>
#include <variant>

#include "model/feed_forward.h"
#include "model/mla_attention.h"

namespace foresail {

class DecoderLayer {
 public:
  // `prefix` is "model.layers.N."
  DecoderLayer(const ModelConfig& config, WeightLoader& loader, const std::string& prefix,
               bool is_moe);
  // h f32 [T, H], in place.
  void forward(Pass& pass, const LatentCache& cache, const MatrixView& h) const;

 private:
  float eps_, residual_scale_;
  Buffer input_norm_, post_attention_norm_;
  MlaAttention attention_;
  std::variant<GatedMlp, MixtureOfExperts> feed_forward_;
};

}  // namespace foresail
