#include "text/jinja_unicode.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "base/utf8.h"

namespace foresail::jinja {
namespace {

struct Range {
  char32_t first, last;
};
struct CaseRange {
  char32_t first, last;
  int32_t delta;
  uint32_t stride;
};
struct CaseSpecial {
  char32_t from;
  char32_t to[3];
};

#include "text/jinja_unicode_data.inc"

template <typename T>
const T* find_range(std::span<const T> table, char32_t code_point) {
  auto it = std::partition_point(table.begin(), table.end(),
                                 [&](const T& row) { return row.last < code_point; });
  return it != table.end() && it->first <= code_point ? &*it : nullptr;
}

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  return find_range<Range>(kUnprintable, c) == nullptr;
}

bool is_alphabetic(char32_t c) {
  return find_range<Range>(kAlphabetic, c) != nullptr;
}

void append_case(std::string& out, char32_t c, Case wanted) {
  if (c < 0x80) {
    const bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
    if (wanted == Case::kLower)
      out.push_back(static_cast<char>(upper ? c + 32 : c));
    else
      out.push_back(static_cast<char>(lower ? c - 32 : c));
    return;
  }
  std::span<const CaseRange> simple = kUpper;
  std::span<const CaseSpecial> special = kUpperSpecial;
  if (wanted == Case::kLower) simple = kLower, special = kLowerSpecial;
  if (wanted == Case::kTitle) simple = kTitle, special = kTitleSpecial;
  auto it = std::partition_point(special.begin(), special.end(),
                                 [&](const CaseSpecial& row) { return row.from < c; });
  if (it != special.end() && it->from == c) {
    for (char32_t mapped : it->to) {
      if (mapped != 0) append_utf8(out, mapped);
    }
    return;
  }
  const CaseRange* row = find_range(simple, c);
  const bool hit = row != nullptr && (c - row->first) % row->stride == 0;
  append_utf8(out, hit ? static_cast<char32_t>(static_cast<int32_t>(c) + row->delta) : c);
}

}  // namespace foresail::jinja
