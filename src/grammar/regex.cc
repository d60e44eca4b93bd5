#include "grammar/regex.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>

#include "grammar/regex_parser.h"

namespace foresail {
namespace {

using Kind = RegexNode::Kind;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t times(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kNoLimit / b ? kNoLimit : a * b;
}

// How many characters matches have.
struct LengthRange {
  int64_t least = 0, most = 0;
};
LengthRange length_of(const RegexNode& node) {
  if (node.kind == Kind::kChars) return {1, 1};
  LengthRange out;
  for (size_t i = 0; i < node.of.size(); ++i) {
    const LengthRange part = length_of(node.of[i]);
    if (node.kind == Kind::kRepeat)
      out = {times(part.least, node.least), times(part.most, node.most < 0 ? kNoLimit : node.most)};
    else if (node.kind == Kind::kChoice && i > 0)
      out = {std::min(out.least, part.least), std::max(out.most, part.most)};
    else
      out = {out.least + std::min(part.least, kNoLimit - out.least),
             out.most + std::min(part.most, kNoLimit - out.most)};
  }
  return out;
}

class RegexWriter {
 public:
  RegexWriter(GrammarBuilder& builder, const RegexOptions& options, const SpellChars& spell)
      : builder_(builder), options_(options), spell_(spell) {}

  // A whole alternative: anchors may stand at its ends only.
  int32_t top(int32_t from, RegexNode node) {
    if (node.kind == Kind::kChoice) {
      const int32_t to = builder_.state();
      for (RegexNode& one : node.of) builder_.skip(top(from, std::move(one)), to);
      return to;
    }
    if (node.kind == Kind::kSequence && node.of.size() == 1 &&
        (node.of[0].kind == Kind::kSequence || node.of[0].kind == Kind::kChoice)) {
      RegexNode inside = std::move(node.of[0]);
      return top(from, std::move(inside));
    }
    bool free_begin = options_.search, free_end = options_.search;
    if (node.kind == Kind::kSequence) {
      std::vector<RegexNode>& of = node.of;
      while (!of.empty() && of.front().kind == Kind::kBegin) {
        of.erase(of.begin());
        free_begin = false;
      }
      while (!of.empty() && of.back().kind == Kind::kEnd) {
        of.pop_back();
        free_end = false;
      }
    }
    limit_length(node, free_begin, free_end);
    if (free_begin) from = anything(from);
    from = write(from, node);
    return free_end ? anything(from) : from;
  }

 private:
  void limit_length(RegexNode& node, bool free_begin, bool free_end) const {
    const int64_t most = options_.most_chars < 0 ? kNoLimit : options_.most_chars;
    LengthRange length = length_of(node);
    if (free_begin || free_end) length.most = kNoLimit;
    if (length.least >= options_.least_chars && length.most <= most) return;
    RegexNode* only = node.of.size() == 1 ? &node.of[0] : nullptr;
    if (!free_begin && !free_end && only != nullptr && only->kind == Kind::kRepeat &&
        only->of[0].kind == Kind::kChars) {
      only->least = std::max(only->least, options_.least_chars);
      only->most = only->most < 0            ? options_.most_chars
                   : options_.most_chars < 0 ? only->most
                                             : std::min(only->most, options_.most_chars);
      if (only->most < 0 || only->least <= only->most) return;
      refuse_grammar("and the length limits beside it exclude each other");
    }
    refuse_grammar("beside minLength or maxLength is not supported, other than as ^[class]*$");
  }

  int32_t write(int32_t from, const RegexNode& node) {
    switch (node.kind) {
      case Kind::kChars: {
        // A class of several characters may take many states: they exist once.
        const bool one = node.chars.size() == 1 && node.chars[0].second < 0x80;
        if (!one) return builder_.call(from, rule_of(node.chars));
        const int32_t to = builder_.state();
        spell_(builder_, from, node.chars, to);
        return to;
      }
      case Kind::kSequence:
        for (const RegexNode& part : node.of) from = write(from, part);
        return from;
      case Kind::kChoice: {
        const int32_t to = builder_.state();
        for (const RegexNode& part : node.of) builder_.skip(write(from, part), to);
        return to;
      }
      case Kind::kRepeat:
        return repeat(from, node);
      default:
        refuse_grammar("has an anchor elsewhere than at the beginning or end");
    }
  }

  int32_t repeat(int32_t from, const RegexNode& node) {
    // Of something empty, however often, there is one.
    if (length_of(node.of[0]).most == 0) return write(from, node.of[0]);
    if (node.most >= 0 && node.most <= 1 && node.least == 0) {
      const int32_t to = builder_.state();
      builder_.skip(from, to);
      if (node.most == 1) builder_.skip(write(from, node.of[0]), to);
      return to;
    }
    if (node.least == 1 && node.most == 1) return write(from, node.of[0]);
    const GrammarBuilder::Rule rule = builder_.rule();
    builder_.skip(write(rule.start, node.of[0]), rule.end);
    return builder_.repeat(from, rule, node.least, node.most);
  }

  int32_t anything(int32_t from) { return builder_.repeat(from, rule_of(complement({})), 0, -1); }

  GrammarBuilder::Rule rule_of(const CharRanges& chars) {
    const auto [found, is_new] = rules_.try_emplace(chars);
    if (is_new) {
      found->second = builder_.rule();
      spell_(builder_, found->second.start, chars, found->second.end);
    }
    return found->second;
  }

  GrammarBuilder& builder_;
  const RegexOptions& options_;
  const SpellChars& spell_;
  std::map<CharRanges, GrammarBuilder::Rule> rules_;
};

}  // namespace

int32_t add_regex(GrammarBuilder& builder, int32_t from, std::string_view pattern,
                  const RegexOptions& options, const SpellChars& spell) {
  RegexNode tree = RegexParser(pattern).parse();
  return RegexWriter(builder, options, spell).top(from, std::move(tree));
}

}  // namespace foresail
