// Attention of the Llama kind, as draft heads use it.
#pragma once

#include <string>

#include "checkpoint/draft_config.h"
#include "model/draft_head.h"
#include "model/pass.h"
#include "model/weight_loader.h"

namespace foresail {

// Grouped-query attention of the Llama kind . A key-value head is kept as a
// LatentCache whose row is [value | key]: with the query [0 | q] the latent kernel's score is q·k
// and its output the weighted values, so no second attention kernel is needed.
class GroupedAttention {
 public:
  // `prefix` is the tensor prefix "….self_attn."; `input_dim` is H, 2H for heads that read two
  // states.
  GroupedAttention(const DraftConfig& config, WeightLoader& loader, const std::string& prefix,
                   int64_t input_dim);
  // y f32 [T, H] += attention(x); x act [T, input_dim].
  void forward(Pass& pass, const MatrixView& x, std::span<const LatentCache> caches,
               const MatrixView& y) const;

 private:
  int head_count_, kv_head_count_, head_dim_;
  MatrixPtr q_proj_, k_proj_, v_proj_, o_proj_;
};

// One per key-value head: values, then keys.
std::vector<CacheShape> grouped_cache_shapes(const DraftConfig& config);

}  // namespace foresail
