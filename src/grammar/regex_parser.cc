#include "grammar/regex_parser.h"

#include <fmt/core.h>

#include "base/utf8.h"

namespace foresail {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr int kMaxDepth = 128;
constexpr int64_t kMaxCount = 1'000'000;
constexpr uint32_t kNoChar = UINT32_MAX;

[[noreturn]] void refuse(const std::string& what) {
  refuse_grammar(fmt::format("has {}", what));
}

const CharRanges kDigits = {{'0', '9'}};
const CharRanges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// The spaces on which all dialects agree, and those of any dialect.
const CharRanges kSpace = {{'\t', '\r'}, {' ', ' '}};
const CharRanges kAnySpace = {{'\t', '\r'},     {0x1C, 0x20},     {0x85, 0x85},
                              {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                              {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                              {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharRanges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}};

}  // namespace

RegexParser::RegexParser(std::string_view pattern) : pattern_(pattern) {
  if (pattern.size() > kMaxPatternBytes)
    refuse_grammar(fmt::format("is longer than {} bytes", kMaxPatternBytes));
  if (!is_valid_utf8(pattern)) refuse_grammar("is no valid UTF-8");
}

RegexNode RegexParser::parse() {
  RegexNode root = choice(0);
  if (!done()) refuse("a ')' without '('");
  return root;
}

bool RegexParser::take(char c) {
  if (done() || pattern_[at_] != c) return false;
  ++at_;
  return true;
}

uint32_t RegexParser::next_char() {
  const Utf8Char c = decode_utf8(pattern_, at_);
  at_ += c.length_bytes;
  return c.code_point;
}

RegexNode RegexParser::choice(int depth) {
  if (depth > kMaxDepth) refuse(fmt::format("groups nested deeper than {}", kMaxDepth));
  RegexNode first = sequence(depth);
  if (!sees("|")) return first;
  RegexNode all{.kind = RegexNode::Kind::kChoice};
  all.of.push_back(std::move(first));
  while (take('|')) all.of.push_back(sequence(depth));
  return all;
}

RegexNode RegexParser::sequence(int depth) {
  RegexNode all{.kind = RegexNode::Kind::kSequence};
  while (!done() && !sees("|") && !sees(")")) {
    RegexNode one = atom(depth);
    RegexNode repeat{.kind = RegexNode::Kind::kRepeat};
    if (take_quantifier(repeat)) {
      if (one.kind == RegexNode::Kind::kBegin || one.kind == RegexNode::Kind::kEnd)
        refuse("a repeated anchor");
      repeat.of.push_back(std::move(one));
      one = std::move(repeat);
      RegexNode second;
      if (take_quantifier(second)) refuse("a quantifier that follows another");
    }
    all.of.push_back(std::move(one));
  }
  return all;
}

// {2}, {2,}, {2,5}; anything else in braces is text.
bool RegexParser::take_counts(RegexNode& repeat) {
  const size_t end = pattern_.find('}', at_);
  if (end == std::string_view::npos) return false;
  const std::string_view inside = pattern_.substr(at_ + 1, end - at_ - 1);
  int64_t counts[2] = {0, -1};
  int which = 0;
  bool any_digit = false;
  for (const char c : inside) {
    if (c == ',' && which == 0 && any_digit) {
      which = 1;
      continue;
    }
    if (c < '0' || c > '9') return false;
    any_digit = true;
    if (counts[which] < 0) counts[which] = 0;
    counts[which] = counts[which] * 10 + (c - '0');
    if (counts[which] > kMaxCount) refuse(fmt::format("a count above {}", kMaxCount));
  }
  if (!any_digit) return false;
  repeat.least = counts[0];
  repeat.most = which == 0 ? counts[0] : counts[1];
  if (repeat.most >= 0 && repeat.most < repeat.least)
    refuse(fmt::format("counts out of order: {{{}}}", inside.substr(0, 40)));
  at_ = end + 1;
  return true;
}

bool RegexParser::take_quantifier(RegexNode& repeat) {
  repeat.least = 0;
  repeat.most = -1;
  if (take('+'))
    repeat.least = 1;
  else if (take('?'))
    repeat.most = 1;
  else if (!take('*') && !(sees("{") && take_counts(repeat)))
    return false;
  take('?');  // lazy
  if (sees("+")) refuse("a possessive quantifier");
  return true;
}

RegexNode RegexParser::group(int depth) {
  if (take('?')) {
    if (sees("P<") || (sees("<") && !sees("<=") && !sees("<!"))) {
      const size_t end = pattern_.find('>', at_);
      if (end == std::string_view::npos) refuse("an unfinished group name");
      at_ = end + 1;
    } else if (!take(':')) {
      refuse(fmt::format("'(?{}', which is not supported", pattern_.substr(at_, done() ? 0 : 1)));
    }
  }
  RegexNode inside = choice(depth + 1);
  if (!take(')')) refuse("a '(' without ')'");
  return inside;
}

RegexNode RegexParser::atom(int depth) {
  RegexNode chars{.kind = RegexNode::Kind::kChars};
  if (take('(')) return group(depth);
  if (take('^')) return {.kind = RegexNode::Kind::kBegin};
  if (take('$')) return {.kind = RegexNode::Kind::kEnd};
  if (sees("*") || sees("+") || sees("?")) refuse("a quantifier with nothing to repeat");
  if (take('[')) {
    chars.chars = bracket();
  } else if (take('.')) {
    chars.chars = complement(kLineEnds);
  } else if (take('\\')) {
    uint32_t single = kNoChar;
    chars.chars = escape(Place::kAlone, single);
    if (single != kNoChar) chars.chars = {{single, single}};
  } else {
    const uint32_t c = next_char();
    chars.chars = {{c, c}};
  }
  chars.chars = normalize(std::move(chars.chars));
  if (chars.chars.empty()) refuse("a class without characters");
  return chars;
}

CharRanges RegexParser::bracket() {
  const bool negated = take('^');
  CharRanges out;
  for (bool first = true; first || !sees("]"); first = false) {
    if (done()) refuse("a '[' without ']'");
    if (first && sees("]")) refuse("an empty class: write \\] for the bracket itself");
    if (sees("[:") || sees("&&")) refuse(fmt::format("'{}' in a class", pattern_.substr(at_, 2)));
    const auto one = [&]() -> uint32_t {
      if (!take('\\')) return next_char();
      uint32_t single = kNoChar;
      const CharRanges chars = escape(negated ? Place::kNegatedClass : Place::kClass, single);
      out.insert(out.end(), chars.begin(), chars.end());
      return single;
    };
    const uint32_t low = one();
    uint32_t high = low;
    if (low != kNoChar && sees("-") && !sees("-]")) {
      ++at_;
      if (done()) refuse("a '[' without ']'");
      high = one();
      if (high == kNoChar || high < low) refuse("a range out of order in a class");
    }
    if (low != kNoChar) out.emplace_back(low, high);
  }
  take(']');
  out = normalize(std::move(out));
  return negated ? complement(out) : out;
}

uint32_t RegexParser::hex(int digits) {
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char c = done() ? ' ' : pattern_[at_++];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) refuse("an unfinished \\x or \\u");
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return value;
}

CharRanges RegexParser::escape(Place place, uint32_t& single) {
  const bool in_bracket = place != Place::kAlone;
  const bool negated = place == Place::kNegatedClass;
  if (done()) refuse("a '\\' at its end");
  const uint32_t c = next_char();
  switch (c) {
    case 'd':
      return kDigits;
    case 'D':
      return complement(kDigits);
    case 'w':
      return kWord;
    case 'W':
      return complement(kWord);
    case 's':
      return negated ? kAnySpace : kSpace;
    case 'S':
      return complement(negated ? kSpace : kAnySpace);
    case 'n':
      single = '\n';
      return {};
    case 't':
      single = '\t';
      return {};
    case 'r':
      single = '\r';
      return {};
    case 'f':
      single = '\f';
      return {};
    case 'v':
      single = '\v';
      return {};
    case 'x':
      single = hex(2);
      return {};
    case 'u':
      single = hex(4);
      // Two escapes may spell one character.
      if (single >= 0xD800 && single <= 0xDBFF && sees("\\u")) {
        at_ += 2;
        const uint32_t low = hex(4);
        if (low >= 0xDC00 && low <= 0xDFFF)
          single = 0x10000 + ((single - 0xD800) << 10) + (low - 0xDC00);
      }
      if (single >= 0xD800 && single <= 0xDFFF) refuse("half of a surrogate pair");
      return {};
    default:
      break;
  }
  const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const bool is_digit = c >= '0' && c <= '9';
  if (is_letter || is_digit) {
    if (in_bracket && c == 'b') {
      single = '\b';
      return {};
    }
    if (c != '0') refuse(fmt::format("'\\{}', which is not supported", static_cast<char>(c)));
    single = 0;
    return {};
  }
  single = c;
  return {};
}

}  // namespace foresail
