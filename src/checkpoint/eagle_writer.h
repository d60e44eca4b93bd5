// A random EAGLE-3 head (one Llama layer over embedding and fused aux states) as a draft folder.
#pragma once

#include <cstdint>
#include <filesystem>

#include "checkpoint/presets.h"

namespace foresail {

void write_eagle_draft(const std::filesystem::path& dir, const ModelConfig& target,
                       const EagleDraftConfig& draft, uint64_t seed);

}  // namespace foresail
