// The tables of normalization form C. Hangul syllables are left out: they are arithmetic.
// Constant tables, sorted by their leading members; any thread may read them.
#pragma once

#include <cstdint>
#include <span>

namespace foresail {

struct Decomposition {
  char32_t from;
  char32_t to[4];  // in full, zeros at the end
};

struct Composition {
  char32_t first, second, result;
};

struct CombiningRange {
  char32_t first, last;  // inclusive
  uint8_t combining_class;
};

std::span<const Decomposition> decompositions();
std::span<const Composition> compositions();
std::span<const CombiningRange> combining_ranges();

}  // namespace foresail
