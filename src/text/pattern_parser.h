// The regular expressions of pre-tokenizers, parsed into a tree: the subset that a finite automaton
// with one character of look-ahead can match. Anything else is refused by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/char_set.h"

namespace foresail {

struct PatternNode {
  enum class Kind { kEmpty, kSet, kSequence, kAlternation, kRepeat, kLookAhead, kEnd };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kEmpty;
  CharSet set;                        // kSet, kLookAhead
  bool negative = false;              // kLookAhead: (?!…); true also at the end of the text
  int min_count = 0, max_count = 0;   // kRepeat
  bool lazy = false;                  // kRepeat: fewest first
  std::vector<PatternNode> children;  // kSequence, kAlternation in order; kRepeat: one
};

Result<PatternNode> parse_pattern(std::string_view pattern);
// The tree that matches exactly this text (a Split by "String").
PatternNode literal_pattern(std::string_view text);

}  // namespace foresail
