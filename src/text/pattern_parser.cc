#include "text/pattern_parser.h"

#include <fmt/format.h>

#include <optional>

#include "base/utf8.h"

namespace foresail {
namespace {

using Kind = PatternNode::Kind;

constexpr int kMaxDepth = 16;     // of groups and nested classes
constexpr int kMaxCount = 64;     // of {n,m}; larger ones would only make large automata
constexpr char32_t kEndOfPattern = 0x110000;

PatternNode set_node(CharSet set) { return {.kind = Kind::kSet, .set = std::move(set)}; }

// Thrown inside this file only; parse_pattern turns it into a value.
struct Refusal {
  std::string message;
};

class Parser {
 public:
  explicit Parser(std::string_view pattern) {
    for (size_t i = 0; i < pattern.size();) {
      const Utf8Char c = decode_utf8(pattern, i);
      chars_.push_back(c.code_point);
      i += c.length_bytes;
    }
  }

  PatternNode parse() {
    PatternNode node = alternation(0);
    if (peek() != kEndOfPattern) refuse("an unmatched )");
    return node;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Refusal{fmt::format("{} (at character {})", what, position_)};
  }
  char32_t peek(size_t ahead = 0) const {
    return position_ + ahead < chars_.size() ? chars_[position_ + ahead] : kEndOfPattern;
  }
  char32_t take() {
    const char32_t c = peek();
    if (c == kEndOfPattern) refuse("the pattern ends too early");
    ++position_;
    return c;
  }
  bool accept(std::u32string_view text) {
    for (size_t i = 0; i < text.size(); ++i)
      if (peek(i) != text[i]) return false;
    position_ += text.size();
    return true;
  }

  PatternNode alternation(int depth) {
    if (depth > kMaxDepth) refuse("groups nested too deep");
    PatternNode node{.kind = Kind::kAlternation};
    do node.children.push_back(sequence(depth));
    while (accept(U"|"));
    return node.children.size() == 1 ? std::move(node.children[0]) : node;
  }

  PatternNode sequence(int depth) {
    PatternNode node{.kind = Kind::kSequence};
    std::vector<size_t> possessive;
    while (peek() != kEndOfPattern && peek() != '|' && peek() != ')') {
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
    if (repeated.kind != Kind::kSet) refuse("a possessive group");
    for (size_t i = index + 1; i < items.size(); ++i) {
      const bool repeat = items[i].kind == Kind::kRepeat;
      const PatternNode& next = repeat ? items[i].children[0] : items[i];
      const bool optional = repeat && items[i].min_count == 0;
      if (next.kind == Kind::kSet && optional) continue;
      if (next.kind != Kind::kSet || !next.set.disjoint_from(repeated.set))
        refuse("a possessive quantifier that changes the match");
      for (size_t j = index + 1; j < i; ++j)
        if (!items[j].children[0].set.disjoint_from(repeated.set))
          refuse("a possessive quantifier that changes the match");
      return;
    }
    if (depth != 0) refuse("a possessive quantifier inside a group");
  }

  // Wraps `item` if a quantifier follows; true if it is possessive.
  bool quantifier(PatternNode& item) {
    int min_count = 0, max_count = PatternNode::kUnbounded;
    bool braces = false;
    if (accept(U"?")) {
      max_count = 1;
    } else if (accept(U"+")) {
      min_count = 1;
    } else if (accept(U"{")) {
      braces = true;
      min_count = number();
      max_count = min_count;
      if (accept(U",")) max_count = peek() == '}' ? PatternNode::kUnbounded : number();
      if (!accept(U"}")) refuse("a malformed {n,m}");
      if (max_count != PatternNode::kUnbounded && max_count < min_count) refuse("{n,m} with n > m");
    } else if (!accept(U"*")) {
      return false;
    }
    if (item.kind == Kind::kLookAhead || item.kind == Kind::kEnd) refuse("a repeated assertion");
    PatternNode node{.kind = Kind::kRepeat, .min_count = min_count, .max_count = max_count};
    node.children.push_back(std::move(item));
    item = std::move(node);
    if (accept(U"?")) {
      if (braces) refuse("a lazy {n,m}");
      item.lazy = true;
      return false;
    }
    const bool possessive = accept(U"+");
    if (possessive && braces) refuse("a quantifier after {n,m}");
    if (peek() == '*' || peek() == '?' || peek() == '+') refuse("a repeated quantifier");
    return possessive;
  }

  int number() {
    if (peek() < '0' || peek() > '9') refuse("a malformed {n,m}");
    int value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<int>(take() - '0');
      if (value > kMaxCount) refuse("a {n,m} above 64");
    }
    return value;
  }

  PatternNode atom(int depth) {
    const char32_t c = take();
    switch (c) {
      case '(': return group(depth);
      case '[': return set_node(folded(char_class(depth)));
      case '\\': return set_node(folded(escape()));
      case '$': return {.kind = Kind::kEnd};
      case '.': return set_node(CharSet::range('\n', '\n').complement());
      case '*': case '+': case '?': refuse("a quantifier without a target");
      case '^': refuse("the anchor ^");
      default: return set_node(folded(CharSet::range(c, c)));
    }
  }

  CharSet folded(CharSet set) const { return ignore_case_ ? set.case_folded() : set; }

  PatternNode group(int depth) {
    const bool outer_case = ignore_case_;
    bool look_ahead = false, negative = false;
    if (accept(U"?:")) {
    } else if (accept(U"?i:")) {
      ignore_case_ = true;
    } else if (accept(U"?!") || accept(U"?=")) {
      look_ahead = true;
      negative = chars_[position_ - 1] == '!';
    } else if (peek() == '?') {
      refuse("a group of an unknown kind");
    }
    PatternNode node = alternation(depth + 1);
    if (!accept(U")")) refuse("a group without its )");
    ignore_case_ = outer_case;
    if (!look_ahead) return node;
    while (node.kind == Kind::kSequence && node.children.size() == 1) {
      PatternNode only = std::move(node.children[0]);
      node = std::move(only);
    }
    if (node.kind != Kind::kSet) refuse("a look-ahead of more than one character");
    node.kind = Kind::kLookAhead;
    node.negative = negative;
    return node;
  }

  // After the backslash.
  CharSet escape() {
    const char32_t c = take();
    switch (c) {
      case 's': return CharSet::white_space();
      case 'S': return CharSet::white_space().complement();
      case 'd': return CharSet::digits();
      case 'D': return CharSet::digits().complement();
      case 'w': return CharSet::word();
      case 'W': return CharSet::word().complement();
      case 'p': case 'P': return property(c == 'P');
      default: { const char32_t literal = escaped_char(c); return CharSet::range(literal, literal); }
    }
  }

  char32_t escaped_char(char32_t c) {
    switch (c) {
      case 'r': return '\r';
      case 'n': return '\n';
      case 't': return '\t';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'x': return hex(2);
      case 'u': return hex(4);
      default: break;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
      refuse(fmt::format("the escape \\{}", static_cast<char>(c)));
    return c;
  }

  char32_t hex(int digits) {
    const bool braces = accept(U"{");
    char32_t value = 0;
    for (int i = 0; braces ? !accept(U"}") : i < digits; ++i) {
      const char32_t c = take();
      const int digit = c >= '0' && c <= '9'   ? static_cast<int>(c - '0')
                        : c >= 'a' && c <= 'f' ? static_cast<int>(c - 'a' + 10)
                        : c >= 'A' && c <= 'F' ? static_cast<int>(c - 'A' + 10)
                                               : -1;
      if (digit < 0 || i >= 6) refuse("a malformed hexadecimal escape");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF) refuse("a hexadecimal escape beyond Unicode");
    return value;
  }

  CharSet property(bool negative) {
    std::string name;
    if (accept(U"{")) {
      if (accept(U"^")) negative = !negative;
      while (peek() != '}') append_utf8(name, take());
      take();
    } else {
      append_utf8(name, take());
    }
    CharSet set;
    if (!CharSet::property(name, set)) refuse(fmt::format("the property \\p{{{}}}", name.substr(0, 40)));
    return negative ? set.complement() : set;
  }

  // After the opening bracket. `&&` binds weaker than listing.
  CharSet char_class(int depth) {
    if (depth > kMaxDepth) refuse("classes nested too deep");
    const bool negative = accept(U"^");
    std::optional<CharSet> intersection;
    CharSet listed;
    for (bool first = true; first || peek() != ']'; first = false) {
      if (accept(U"&&")) {
        intersection = intersection ? intersection->intersected(listed) : listed;
        listed = {};
        continue;
      }
      listed = listed.united(class_item(depth));
    }
    take();
    const CharSet set = intersection ? intersection->intersected(listed) : listed;
    return negative ? set.complement() : set;
  }

  CharSet class_item(int depth) {
    const char32_t c = take();
    if (c == '[') {
      if (peek() == ':') refuse("a POSIX bracket");
      return char_class(depth + 1);
    }
    char32_t first = c;
    if (c == '\\') {
      const char32_t kind = peek();
      const bool is_set = kind == 's' || kind == 'S' || kind == 'd' || kind == 'D' || kind == 'w' ||
                          kind == 'W' || kind == 'p' || kind == 'P';
      if (is_set) return escape();
      first = escaped_char(take());
    }
    // A dash before the closing bracket, or as the first character, is itself.
    if (peek() != '-' || peek(1) == ']' || peek(1) == '[') return CharSet::range(first, first);
    take();
    char32_t last = take();
    if (last == '\\') {
      if (peek() == 's' || peek() == 'p' || peek() == 'd' || peek() == 'w')
        refuse("a range that ends in a class");
      last = escaped_char(take());
    }
    if (last < first) refuse("a range out of order");
    return CharSet::range(first, last);
  }

  std::vector<char32_t> chars_;
  size_t position_ = 0;
  bool ignore_case_ = false;
};

}  // namespace

Result<PatternNode> parse_pattern(std::string_view pattern) {
  if (pattern.size() > 65536) return input_error("the pattern is longer than 65536 bytes");
  try {
    return Parser(pattern).parse();
  } catch (const Refusal& refusal) {
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
