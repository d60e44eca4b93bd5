// config.json of an EAGLE draft head, validated. Formats: heads of the Llama kind (grouped-query
// attention) and of the MLA kind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"

namespace foresail {

struct DraftConfig {
  bool is_mla = false;
  bool names_eagle3 = false;  // the class does; heads that do not may be EAGLE-3 all the same
  ModelConfig mla;  // dims of the draft layer when is_mla; hidden, rope, eps and vocabulary always
  int64_t kv_head_count = 0;  // Llama kind
  int64_t head_dim = 0;
  int64_t draft_vocab_size = 0;
  // Target states as "entering layer k": files that count a layer's output are shifted by one here.
  std::vector<int> target_layers;
  bool norm_output = false;           // EAGLE-3.1: the recycled state is the normed one
  bool norm_before_residual = false;  // the residual starts from hidden_norm(state)
  bool fc_norm = false;               // one norm per target state before fc
  bool norm_before_fc = false;        // one norm over all target states before fc
};

// Throws Error{kModel}. The target's config supplies defaults and is checked against.
DraftConfig read_draft_config(const std::filesystem::path& draft_dir, const ModelConfig& target);

}  // namespace foresail
