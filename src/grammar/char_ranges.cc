#include "grammar/char_ranges.h"

#include <algorithm>

namespace foresail {
namespace {

constexpr uint32_t kLastChar = 0x10FFFF;
constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

struct Utf8 {
  uint8_t bytes[4];
  int length;
};

Utf8 encode(uint32_t c) {
  const auto low = [&](int shift) { return static_cast<uint8_t>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {{static_cast<uint8_t>(c)}, 1};
  if (c < 0x800) return {{static_cast<uint8_t>(0xC0 | (c >> 6)), low(0)}, 2};
  if (c < 0x10000) return {{static_cast<uint8_t>(0xE0 | (c >> 12)), low(6), low(0)}, 3};
  return {{static_cast<uint8_t>(0xF0 | (c >> 18)), low(12), low(6), low(0)}, 4};
}

// low and high have one length, and at every byte where they differ all that follow run from 80 to
// BF: a product of byte ranges.
void add_sequence(GrammarBuilder& builder, int32_t from, uint32_t low, uint32_t high, int32_t to) {
  const Utf8 first = encode(low), last = encode(high);
  for (int i = 0; i + 1 < first.length; ++i)
    from = builder.symbol(from, first.bytes[i], last.bytes[i]);
  builder.symbols(from, first.bytes[first.length - 1], last.bytes[last.length - 1], to);
}

void add_range(GrammarBuilder& builder, int32_t from, uint32_t low, uint32_t high, int32_t to) {
  for (const uint32_t length_end : {0x7Fu, 0x7FFu, 0xFFFFu})
    if (low <= length_end && high > length_end) {
      add_range(builder, from, low, length_end, to);
      return add_range(builder, from, length_end + 1, high, to);
    }
  for (int continuation = 1; continuation < encode(low).length; ++continuation) {
    const uint32_t mask = (1u << (6 * continuation)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      add_range(builder, from, low, low | mask, to);
      return add_range(builder, from, (low | mask) + 1, high, to);
    }
    if ((high & mask) != mask) {
      add_range(builder, from, low, (high & ~mask) - 1, to);
      return add_range(builder, from, high & ~mask, high, to);
    }
  }
  add_sequence(builder, from, low, high, to);
}

}  // namespace

CharRanges normalize(CharRanges ranges) {
  CharRanges cut;
  for (const auto& [low, high] : ranges) {
    if (low < kFirstSurrogate) cut.emplace_back(low, std::min(high, kFirstSurrogate - 1));
    if (high > kLastSurrogate)
      cut.emplace_back(std::max(low, kLastSurrogate + 1), std::min(high, kLastChar));
  }
  std::sort(cut.begin(), cut.end());
  CharRanges out;
  for (const auto& [low, high] : cut) {
    if (low > high) continue;
    if (!out.empty() && low <= out.back().second + 1)
      out.back().second = std::max(out.back().second, high);
    else
      out.emplace_back(low, high);
  }
  return out;
}

CharRanges complement(const CharRanges& normalized) {
  CharRanges out;
  uint32_t next = 0;
  for (const auto& [low, high] : normalized) {
    if (low > next) out.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastChar) out.emplace_back(next, kLastChar);
  return normalize(std::move(out));
}

CharRanges intersect(const CharRanges& a, const CharRanges& b) {
  CharRanges out;
  for (const auto& [low, high] : a)
    for (const auto& [other_low, other_high] : b)
      if (std::max(low, other_low) <= std::min(high, other_high))
        out.emplace_back(std::max(low, other_low), std::min(high, other_high));
  return normalize(std::move(out));
}

void add_utf8(GrammarBuilder& builder, int32_t from, const CharRanges& normalized, int32_t to) {
  for (const auto& [low, high] : normalized) add_range(builder, from, low, high, to);
}

}  // namespace foresail
