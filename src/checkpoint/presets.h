// The models that make-model can write: small ones for trials and tests, and full-size shapes with
// random weights for measuring speed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "checkpoint/model_config.h"

namespace foresail {

struct PresetInfo {
  std::string_view name;
  std::string_view summary;
};
std::span<const PresetInfo> preset_list();

// An EAGLE-3 head with one Llama layer, to be written into DIR/draft.
struct EagleDraftConfig {
  int64_t head_count = 0;
  int64_t kv_head_count = 0;
  int64_t head_dim = 0;
  int64_t intermediate_dim = 0;
  int64_t draft_vocab_size = 0;
  double rope_theta = 10000.0;
  std::vector<int64_t> aux_layers;  // outputs of these target layers feed fc
};

struct Preset {
  ModelConfig config;
  std::optional<EagleDraftConfig> draft;
};

// Throws Error{kUsage} for a name that is not listed or a layer count out of range.
Preset make_preset(std::string_view name, std::optional<int64_t> layers = {});

}  // namespace foresail
