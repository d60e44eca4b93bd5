// The version that clients are told.
#pragma once

#include "foresail/version.h"

namespace foresail {

inline constexpr const char* kVersion = FORESAIL_VERSION;

}  // namespace foresail
