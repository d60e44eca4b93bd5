// A multi-token-prediction layer as DeepSeek-V3 ships it (technical report §2.2): eh_proj over
// [enorm(embedding), hnorm(state)], one decoder layer, the shared vocabulary head.
#pragma once

#include <memory>

#include "model/draft_head.h"
#include "model/mla_model.h"

namespace foresail {

class MtpHead : public DraftHead {
 public:
  // Layer `layer_count + index` of the checkpoint. The target must outlive the head.
  MtpHead(const MlaModel& target, WeightLoader& loader, int64_t index);
  static bool present(const ModelConfig& config, const WeightLoader& loader);

  Output forward(const DraftBatch& batch, std::span<const LatentCache> caches) override;
  std::vector<CacheShape> cache_shapes() const override;
  std::vector<int> target_layers() const override;
  int64_t state_dim() const override { return target_.config().hidden_dim; }
  bool scales_queries() const override { return target_.config().rope.query_scaling_beta != 0.0; }

 private:
  const MlaModel& target_;
  Buffer embedding_norm_, hidden_norm_, head_norm_;
  MatrixPtr eh_proj_;  // [H, 2H]
  std::unique_ptr<DecoderLayer> layer_;
  EmbeddingTable own_embedding_;  // empty: the target's
  MatrixPtr own_head_;            // null: the target's
  const uint64_t work_id_ = new_work_id();
  Arena arena_;
};

}  // namespace foresail
