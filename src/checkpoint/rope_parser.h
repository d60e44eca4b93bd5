// The rope block of a config.json in both spellings: rope_theta + rope_scaling {type, ...} and
// rope_parameters {rope_theta, rope_type, ...}. Either is read; disagreement is refused.
#pragma once

#include <string>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"

namespace foresail {

// `config` supplies rope_dim, nope_dim and max_positions, which must be read already.
RopeConfig parse_rope(const ConfigFields& fields, std::string_view family,
                      const ModelConfig& config);

}  // namespace foresail
