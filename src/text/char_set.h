// A set of Unicode code points, the character class of a regular expression.
// A plain value; used while a tokenizer loads, never while it encodes.
#pragma once

#include <string_view>
#include <vector>

#include "text/unicode_categories.h"

namespace foresail {

class CharSet {
 public:
  CharSet() = default;
  static CharSet range(char32_t first, char32_t last);
  static CharSet white_space();
  static CharSet digits();  // \d: decimal digits of every script
  static CharSet word();    // \w: letters, marks, decimal and letter digits, connector punctuation
  // "L", "Lu", "Han", "Script=Han", …; false if the name is unknown.
  static bool property(std::string_view name, CharSet& out);

  CharSet united(const CharSet& other) const;
  CharSet intersected(const CharSet& other) const;
  CharSet complement() const;
  // Adds the other case of every ASCII letter, and the two characters that fold to one (ſ, K).
  CharSet case_folded() const;

  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  bool disjoint_from(const CharSet& other) const { return intersected(other).empty(); }
  const std::vector<CodePointRange>& ranges() const { return ranges_; }  // sorted, apart
  friend bool operator==(const CharSet&, const CharSet&) = default;

 private:
  explicit CharSet(std::vector<CodePointRange> ranges);
  std::vector<CodePointRange> ranges_;
};

}  // namespace foresail
