#include "text/pattern_parser.h"

#include <fmt/core.h>

#include "base/utf8.h"
#include "text/pattern_class.h"
#include "text/pattern_cursor.h"

namespace foresail {
namespace {

using Kind = PatternNode::Kind;

constexpr int kMaxCount = 64;  // of {n,m}; larger ones would only make large automata

PatternNode set_node(CharSet set) {
  return {.kind = Kind::kSet, .set = std::move(set)};
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : cursor_(pattern) {}

  PatternNode parse() {
    PatternNode node = alternation(0);
    if (cursor_.peek() != PatternCursor::kEnd) cursor_.refuse("an unmatched )");
    return node;
  }

 private:
  PatternNode alternation(int depth) {
    if (depth > PatternCursor::kMaxDepth) cursor_.refuse("groups nested too deep");
    PatternNode node{.kind = Kind::kAlternation};
    do node.children.push_back(sequence(depth));
    while (cursor_.accept(U"|"));
    return node.children.size() == 1 ? std::move(node.children[0]) : node;
  }

  PatternNode sequence(int depth) {
    PatternNode node{.kind = Kind::kSequence};
    std::vector<size_t> possessive;
    while (cursor_.peek() != PatternCursor::kEnd && cursor_.peek() != '|' &&
           cursor_.peek() != ')') {
      PatternNode item = atom(depth);
      if (quantifier(item)) possessive.push_back(node.children.size());
      node.children.push_back(std::move(item));
    }
    for (const size_t index : possessive) check_possessive(node.children, index, depth);
    return node;
  }

  // An automaton cannot forbid giving characters back, so X*+ is accepted only where X* never
  // would: what follows starts outside X, or nothing that follows can fail.
  void check_possessive(const std::vector<PatternNode>& items, size_t index, int depth) const {
    const PatternNode& repeated = items[index].children[0];
    if (repeated.kind != Kind::kSet) cursor_.refuse("a possessive group");
    for (size_t i = index + 1; i < items.size(); ++i) {
      const bool repeat = items[i].kind == Kind::kRepeat;
      const PatternNode& next = repeat ? items[i].children[0] : items[i];
      const bool optional = repeat && items[i].min_count == 0;
      if (next.kind == Kind::kSet && optional) continue;
      if (next.kind != Kind::kSet || !next.set.disjoint_from(repeated.set))
        cursor_.refuse("a possessive quantifier that changes the match");
      for (size_t j = index + 1; j < i; ++j)
        if (!items[j].children[0].set.disjoint_from(repeated.set))
          cursor_.refuse("a possessive quantifier that changes the match");
      return;
    }
    if (depth != 0) cursor_.refuse("a possessive quantifier inside a group");
  }

  // Wraps `item` if a quantifier follows; true if it is possessive.
  bool quantifier(PatternNode& item) {
    int min_count = 0, max_count = PatternNode::kUnbounded;
    bool braces = false;
    if (cursor_.accept(U"?")) {
      max_count = 1;
    } else if (cursor_.accept(U"+")) {
      min_count = 1;
    } else if (cursor_.accept(U"{")) {
      braces = true;
      min_count = number();
      max_count = min_count;
      if (cursor_.accept(U","))
        max_count = cursor_.peek() == '}' ? PatternNode::kUnbounded : number();
      if (!cursor_.accept(U"}")) cursor_.refuse("a malformed {n,m}");
      if (max_count != PatternNode::kUnbounded && max_count < min_count)
        cursor_.refuse("{n,m} with n > m");
    } else if (!cursor_.accept(U"*")) {
      return false;
    }
    if (item.kind == Kind::kLookAhead || item.kind == Kind::kEnd)
      cursor_.refuse("a repeated assertion");
    PatternNode node{.kind = Kind::kRepeat, .min_count = min_count, .max_count = max_count};
    node.children.push_back(std::move(item));
    item = std::move(node);
    if (cursor_.accept(U"?")) {
      if (braces) cursor_.refuse("a lazy {n,m}");
      item.lazy = true;
      return false;
    }
    const bool possessive = cursor_.accept(U"+");
    if (possessive && braces) cursor_.refuse("a quantifier after {n,m}");
    if (cursor_.peek() == '*' || cursor_.peek() == '?' || cursor_.peek() == '+')
      cursor_.refuse("a repeated quantifier");
    return possessive;
  }

  int number() {
    if (cursor_.peek() < '0' || cursor_.peek() > '9') cursor_.refuse("a malformed {n,m}");
    int value = 0;
    while (cursor_.peek() >= '0' && cursor_.peek() <= '9') {
      value = value * 10 + static_cast<int>(cursor_.take() - '0');
      if (value > kMaxCount) cursor_.refuse("a {n,m} above 64");
    }
    return value;
  }

  PatternNode atom(int depth) {
    const char32_t c = cursor_.take();
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return set_node(folded(parse_class(cursor_, depth)));
      case '\\':
        return set_node(folded(parse_class_escape(cursor_)));
      case '$':
        return {.kind = Kind::kEnd};
      case '.':
        return set_node(CharSet::range('\n', '\n').complement());
      case '*':
      case '+':
      case '?':
        cursor_.refuse("a quantifier without a target");
      case '^':
        cursor_.refuse("the anchor ^");
      default:
        return set_node(folded(CharSet::range(c, c)));
    }
  }

  CharSet folded(CharSet set) const { return ignore_case_ ? set.case_folded() : set; }

  PatternNode group(int depth) {
    const bool outer_case = ignore_case_;
    bool look_ahead = false, negative = false;
    if (cursor_.accept(U"?:")) {
    } else if (cursor_.accept(U"?i:")) {
      ignore_case_ = true;
    } else if (const char32_t kind = cursor_.peek(1);
               cursor_.accept(U"?!") || cursor_.accept(U"?=")) {
      look_ahead = true;
      negative = kind == '!';
    } else if (cursor_.peek() == '?') {
      cursor_.refuse("a group of an unknown kind");
    }
    PatternNode node = alternation(depth + 1);
    if (!cursor_.accept(U")")) cursor_.refuse("a group without its )");
    ignore_case_ = outer_case;
    if (!look_ahead) return node;
    while (node.kind == Kind::kSequence && node.children.size() == 1) {
      PatternNode only = std::move(node.children[0]);
      node = std::move(only);
    }
    if (node.kind != Kind::kSet) cursor_.refuse("a look-ahead of more than one character");
    node.kind = Kind::kLookAhead;
    node.negative = negative;
    return node;
  }

  PatternCursor cursor_;
  bool ignore_case_ = false;
};

}  // namespace

Result<PatternNode> parse_pattern(std::string_view pattern) {
  if (pattern.size() > 65536) return input_error("the pattern is longer than 65536 bytes");
  try {
    return Parser(pattern).parse();
  } catch (const PatternRefusal& refusal) {
    return input_error(refusal.message);
  }
}

PatternNode literal_pattern(std::string_view text) {
  PatternNode node{.kind = Kind::kSequence};
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    node.children.push_back(set_node(CharSet::range(c.code_point, c.code_point)));
    i += c.length_bytes;
  }
  return node;
}

}  // namespace foresail
