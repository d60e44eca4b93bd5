// Sets of characters as sorted ranges of code points, and their UTF-8. Any thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace foresail {

using CharRanges = std::vector<std::pair<uint32_t, uint32_t>>;  // ascending, apart, inclusive

// Any order and overlap; surrogates are no characters and are left out.
CharRanges normalize(CharRanges ranges);
CharRanges complement(const CharRanges& normalized);
CharRanges intersect(const CharRanges& a, const CharRanges& b);

// Paths from `from` to `to` that spell the characters in UTF-8.
void add_utf8(GrammarBuilder& builder, int32_t from, const CharRanges& normalized, int32_t to);

}  // namespace foresail
