// An EAGLE-1/2 head (Li et al. 2024), used as a chain: fc over [embedding, state], one Llama layer
// without an input norm, the target's vocabulary head and no final norm. The state is the target's
// after its final norm; what is recycled is the layer's raw output.
#pragma once

#include <memory>

#include "checkpoint/draft_config.h"
#include "model/draft_head.h"
#include "model/grouped_attention.h"
#include "model/mla_model.h"

namespace foresail {

class EagleHead : public DraftHead {
 public:
  // The target must outlive the head. Throws Error{kModel} where the widths differ.
  EagleHead(const DraftConfig& config, const MlaModel& target, WeightLoader& loader);

  Output forward(const DraftBatch& batch, std::span<const LatentCache> caches) override;
  std::vector<CacheShape> cache_shapes() const override { return grouped_cache_shapes(config_); }
  std::vector<int> target_layers() const override { return {HiddenCapture::kAfterFinalNorm}; }
  int64_t state_dim() const override { return config_.mla.hidden_dim; }

 private:
  DraftConfig config_;
  const MlaModel& target_;
  MatrixPtr fc_;    // [H, 2H]
  Buffer fc_bias_;  // empty: none
  Buffer post_attention_norm_;
  std::unique_ptr<GroupedAttention> attention_;
  std::unique_ptr<GatedMlp> mlp_;
  EmbeddingTable own_embedding_;  // empty: the target's
  RopeTables rope_;
  const uint64_t work_id_ = new_work_id();
  Arena arena_;
};

}  // namespace foresail
