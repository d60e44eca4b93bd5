// By what config.json shows that it is a draft head's and not a model's.
#pragma once

#include <string>

#include "checkpoint/config_fields.h"

namespace foresail {

// kNone: of a model, or of an early head, whose config.json is that of a model with one layer.
enum class DraftHeadSigns { kNone, kEagle, kEagle3 };

// The first of `architectures`; empty where there is no such key.
std::string first_architecture(const ConfigFields& fields);
DraftHeadSigns draft_head_signs(const ConfigFields& fields, const std::string& architecture);

}  // namespace foresail
