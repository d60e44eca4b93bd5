// The version that clients are told.
#pragma once

namespace foresail {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace foresail
