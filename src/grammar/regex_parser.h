// Reads a regular expression into a tree. One use, one thread.
#pragma once

#include <string_view>
#include <vector>

#include "grammar/char_ranges.h"

namespace foresail {

struct RegexNode {
  enum class Kind { kChars, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSequence;
  CharRanges chars = {};           // kChars
  std::vector<RegexNode> of = {};  // the parts; of kRepeat: one
  int64_t least = 0, most = 0;     // kRepeat; most < 0: any number
};

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern);
  // Throws GrammarFault.
  RegexNode parse();

 private:
  RegexNode choice(int depth);
  RegexNode sequence(int depth);
  RegexNode atom(int depth);
  RegexNode group(int depth);
  bool take_quantifier(RegexNode& repeat);
  bool take_counts(RegexNode& repeat);
  CharRanges bracket();
  // A class such as \d, or one character in `single`.
  // What a class leaves out decides how much its escapes may take in.
  enum class Place { kAlone, kClass, kNegatedClass };
  CharRanges escape(Place place, uint32_t& single);
  uint32_t hex(int digits);
  uint32_t next_char();

  bool done() const { return at_ == pattern_.size(); }
  bool sees(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(char c);

  std::string_view pattern_;
  size_t at_ = 0;
};

}  // namespace foresail
