// An EAGLE-3 head (Li et al. 2025): fc over three target states, one layer that reads
// [norm(embedding), norm(state)], a reduced draft vocabulary. Llama and MLA layers. A head without
// lm_head.weight drafts with the rows of the target's vocabulary head that d2t names.
#pragma once

#include <memory>

#include "checkpoint/draft_config.h"
#include "model/draft_head.h"
#include "model/grouped_attention.h"
#include "model/mla_model.h"

namespace foresail {

class Eagle3Head : public DraftHead {
 public:
  // The target must outlive the head; target_loader is the one that it came from.
  Eagle3Head(const DraftConfig& config, const MlaModel& target, WeightLoader& loader,
             WeightLoader& target_loader);

  Output forward(const DraftBatch& batch, std::span<const LatentCache> caches) override;
  std::vector<CacheShape> cache_shapes() const override;
  std::vector<int> target_layers() const override { return config_.target_layers; }
  int64_t state_dim() const override { return config_.mla.hidden_dim; }
  std::span<const int32_t> token_map() const override { return target_token_; }

 private:
  MatrixView fuse(Pass& pass, const MatrixView& states) const;

  DraftConfig config_;
  const MlaModel& target_;
  MatrixPtr fc_;  // [H, 3 * H_target]
  std::vector<Buffer> fc_norms_;
  Buffer fc_input_norm_, embedding_norm_, hidden_norm_, post_attention_norm_, head_norm_;
  std::unique_ptr<GroupedAttention> grouped_attention_;
  std::unique_ptr<MlaAttention> latent_attention_;
  std::unique_ptr<GatedMlp> mlp_;
  EmbeddingTable own_embedding_;       // empty: the target's
  MatrixPtr head_;                     // [draft vocabulary, H]; null: the target's as it is
  float logit_scale_ = 1.0f;           // the target's where its rows are used
  std::vector<int32_t> target_token_;  // draft id -> target id; empty: the same
  Buffer placed_map_;                  // a copy in the memory of the kernels
  RopeTables rope_;
  const uint64_t work_id_ = new_work_id();
  Arena arena_;
};

}  // namespace foresail
