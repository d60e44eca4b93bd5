// The mixture-of-experts keys of a config.json: which layers are sparse, and the gate.
#pragma once

#include <string_view>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"

namespace foresail {

// Fills config.layer_is_moe and config.moe; dimensions must be read already.
void parse_moe(const ConfigFields& fields, std::string_view family, ModelConfig& config);

}  // namespace foresail
