#include "text/canonical_composition.h"

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "text/canonical_tables.h"

namespace foresail {
namespace {

// Hangul syllables, Unicode chapter 3.12.
constexpr char32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr char32_t kNumL = 19, kNumV = 21, kNumT = 28, kNumS = kNumL * kNumV * kNumT;

constexpr char32_t kFirstChanging = 0x300;  // below, text is composed already

struct Char {
  char32_t code_point;
  uint8_t combining_class;
};

uint8_t combining_class(char32_t c) {
  if (c < kFirstChanging) return 0;
  const auto ranges = combining_ranges();
  const auto found =
      std::lower_bound(ranges.begin(), ranges.end(), c,
                       [](const auto& range, char32_t value) { return range.last < value; });
  return found != ranges.end() && found->first <= c ? found->combining_class : 0;
}

void decompose(char32_t c, std::vector<Char>& out) {
  if (c >= kS && c < kS + kNumS) {
    const char32_t index = c - kS;
    out.push_back({kL + index / (kNumV * kNumT), 0});
    out.push_back({kV + index % (kNumV * kNumT) / kNumT, 0});
    if (index % kNumT != 0) out.push_back({kT + index % kNumT, 0});
    return;
  }
  const auto table = decompositions();
  const auto found =
      std::lower_bound(table.begin(), table.end(), c,
                       [](const auto& entry, char32_t value) { return entry.from < value; });
  if (found == table.end() || found->from != c) {
    out.push_back({c, combining_class(c)});
    return;
  }
  for (const char32_t part : found->to)
    if (part != 0) out.push_back({part, combining_class(part)});
}

// 0: the two do not compose.
char32_t composed(char32_t first, char32_t second) {
  if (first >= kL && first < kL + kNumL && second >= kV && second < kV + kNumV)
    return kS + ((first - kL) * kNumV + second - kV) * kNumT;
  const bool is_open_syllable = first >= kS && first < kS + kNumS && (first - kS) % kNumT == 0;
  if (is_open_syllable && second > kT && second < kT + kNumT) return first + second - kT;
  const auto table = compositions();
  const auto before = [](const Composition& entry, const Composition& wanted) {
    return entry.first != wanted.first ? entry.first < wanted.first : entry.second < wanted.second;
  };
  const auto found =
      std::lower_bound(table.begin(), table.end(), Composition{first, second, 0}, before);
  const bool exact = found != table.end() && found->first == first && found->second == second;
  return exact ? found->result : 0;
}

void sort_marks(std::vector<Char>& chars) {
  const auto is_mark = [](const Char& c) { return c.combining_class != 0; };
  const auto by_class = [](const Char& a, const Char& b) {
    return a.combining_class < b.combining_class;
  };
  for (auto begin = chars.begin();
       (begin = std::find_if(begin, chars.end(), is_mark)) != chars.end();) {
    const auto end = std::find_if_not(begin, chars.end(), is_mark);
    std::stable_sort(begin, end, by_class);
    begin = end;
  }
}

}  // namespace

std::string canonically_composed(std::string_view text) {
  const auto changes_nothing = [](char byte) { return static_cast<unsigned char>(byte) < 0xCC; };
  if (std::all_of(text.begin(), text.end(), changes_nothing)) return std::string(text);

  std::vector<Char> chars;
  chars.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    decompose(c.code_point, chars);
    i += c.length_bytes;
  }
  sort_marks(chars);

  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t num_kept = 0, starter = kNone;
  int blocking_class = -1;  // of the last mark kept after the starter; -1: none stands between
  for (const Char c : chars) {
    const bool blocked = blocking_class >= static_cast<int>(c.combining_class);
    const char32_t joined =
        starter == kNone || blocked ? 0 : composed(chars[starter].code_point, c.code_point);
    if (joined != 0) {
      chars[starter].code_point = joined;
      continue;
    }
    if (c.combining_class == 0) starter = num_kept;
    blocking_class = c.combining_class == 0 ? -1 : c.combining_class;
    chars[num_kept++] = c;
  }

  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < num_kept; ++i) append_utf8(out, chars[i].code_point);
  return out;
}

}  // namespace foresail
