// Which quantised weight format a config.json (or hf_quant_config.json) declares, in words.
#pragma once

#include <string>

#include "checkpoint/config_fields.h"

namespace foresail {

// "" when the weights are plain floats; else words for a message, such as "FP8 block".
std::string parse_quantization(const ConfigFields& fields);
// The same for modelopt's hf_quant_config.json.
std::string parse_modelopt_quantization(const ConfigFields& fields);

}  // namespace foresail
