// ModelConfig -> config.json and generation_config.json, the inverse of parse_model_config.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace foresail {

// In the older spelling (rope_theta + rope_scaling), which every engine reads.
std::string to_config_json(const ModelConfig& config);
std::string to_generation_config_json(const ModelConfig& config);

}  // namespace foresail
