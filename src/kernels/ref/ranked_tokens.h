// The oracle of truncation: what a draw may take of a row, ranked as a whole and cut where it must
// be. Stateless.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/token_choice.h"

namespace foresail {

// Ids in ascending order.
std::vector<int32_t> ranked_drawable_tokens(std::span<const float> logits, const TokenDraw& draw);

}  // namespace foresail
