#include "text/char_set.h"

#include <algorithm>
#include <iterator>

namespace foresail {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

constexpr std::string_view kCategoryNames[] = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

std::vector<CodePointRange> merged(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<CodePointRange> out;
  for (const CodePointRange& range : ranges) {
    if (!out.empty() && range.first <= out.back().last + 1)
      out.back().last = std::max(out.back().last, range.last);
    else
      out.push_back(range);
  }
  return out;
}

}  // namespace

CharSet::CharSet(std::vector<CodePointRange> ranges) : ranges_(merged(std::move(ranges))) {}

CharSet CharSet::range(char32_t first, char32_t last) {
  return CharSet(std::vector<CodePointRange>{{first, last}});
}

CharSet CharSet::white_space() {
  const auto ranges = white_space_ranges();
  return CharSet({ranges.begin(), ranges.end()});
}

CharSet CharSet::digits() {
  CharSet out;
  property("Nd", out);
  return out;
}

CharSet CharSet::word() {
  CharSet out;
  for (const std::string_view name : {"L", "M", "Nd", "Nl", "Pc"}) {
    CharSet part;
    property(name, part);
    out = out.united(part);
  }
  return out;
}

bool CharSet::property(std::string_view name, CharSet& out) {
  for (const std::string_view prefix : {"Script=", "sc=", "gc=", "General_Category="})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  if (name == "Han") {
    const auto ranges = han_ranges();
    out = CharSet({ranges.begin(), ranges.end()});
    return true;
  }
  if (name.empty() || name.size() > 2) return false;
  const bool known =
      std::any_of(std::begin(kCategoryNames), std::end(kCategoryNames),
                  [&](std::string_view known_name) { return known_name.starts_with(name); });
  // "Cn" and "C" would need the gaps of the table; no tokenizer asks for them.
  if (!known || name[0] == 'C') {
    if (name != "Cc" && name != "Cf" && name != "Co") return false;
  }
  std::vector<CodePointRange> ranges;
  for (const CategoryRange& range : category_ranges())
    if (kCategoryNames[static_cast<size_t>(range.category)].starts_with(name))
      ranges.push_back({range.first, range.last});
  out = CharSet(std::move(ranges));
  return true;
}

CharSet CharSet::united(const CharSet& other) const {
  std::vector<CodePointRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(std::move(all));
}

CharSet CharSet::intersected(const CharSet& other) const {
  std::vector<CodePointRange> common;
  for (size_t i = 0, j = 0; i < ranges_.size() && j < other.ranges_.size();) {
    const CodePointRange a = ranges_[i], b = other.ranges_[j];
    const char32_t first = std::max(a.first, b.first), last = std::min(a.last, b.last);
    if (first <= last) common.push_back({first, last});
    (a.last < b.last ? i : j) += 1;
  }
  return CharSet(std::move(common));
}

CharSet CharSet::complement() const {
  std::vector<CodePointRange> gaps;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) gaps.push_back({next, kLastCodePoint});
  return CharSet(std::move(gaps));
}

CharSet CharSet::case_folded() const {
  CharSet out = *this;
  for (char32_t lower = 'a'; lower <= 'z'; ++lower) {
    const char32_t upper = lower - 'a' + 'A';
    if (!contains(lower) && !contains(upper)) continue;
    out = out.united(range(lower, lower)).united(range(upper, upper));
    if (lower == 's') out = out.united(range(0x17F, 0x17F));
    if (lower == 'k') out = out.united(range(0x212A, 0x212A));
  }
  return out;
}

bool CharSet::contains(char32_t c) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), c,
                       [](char32_t value, const auto& r) { return value < r.first; });
  return after != ranges_.begin() && c <= std::prev(after)->last;
}

}  // namespace foresail
