// What a config.json may ask for that Foresail does not compute: one table, one line per refusal.
// Called before any field is read, so the message names the feature and not a missing key.
#pragma once

#include "checkpoint/config_fields.h"

namespace foresail {

// Throws Error{kModel} when a key, a model type or an unknown key that may change the maths
// asks for something that is not supported. `fields` is the text part of the config.
void refuse_unsupported_features(const ConfigFields& fields);
// The model type alone, for the wrapper around a text config.
void refuse_unsupported_model_type(const ConfigFields& fields);

}  // namespace foresail
