// How a model asks to be drawn from: the part of generation_config.json that says so.
#pragma once

#include <string>

#include "foresail/request.h"

namespace foresail {

// What the file in the model's folder says, where there is one; the rest stays as in `sampling`.
// Throws Error{kModel}.
SamplingParams read_sampling_defaults(const std::string& model_path, SamplingParams sampling = {});

}  // namespace foresail
