#include "text/pattern.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace foresail {

namespace {

using Kind = PatternNode::Kind;

constexpr size_t kMaxNfaStates = 512;
constexpr size_t kMaxDfaStates = 512;
constexpr size_t kMaxSets = 64;  // one bit each in a signature
constexpr size_t kMaxClasses = 128;

struct TooComplex {};

struct NfaState {
  enum class Kind : uint8_t { kSet, kSplit, kLook, kMatch } kind;
  uint32_t set = 0;              // kSet, kLook: index of the set
  bool negative = false;         // kLook: passes when the next character is not in the set
  bool passes_at_end = false;    // kLook
  uint32_t next = 0, other = 0;  // kSplit prefers next
};

}  // namespace

class PatternCompiler {
 public:
  Pattern compile(const PatternNode& tree) {
    const uint32_t match = add({.kind = NfaState::Kind::kMatch});
    const uint32_t start = build(tree, match);
    number_classes();
    determinize(start);
    note_starts(tree);
    return std::move(out_);
  }

 private:
  uint32_t add(NfaState state) {
    if (nfa_.size() >= kMaxNfaStates) throw TooComplex{};
    nfa_.push_back(state);
    return static_cast<uint32_t>(nfa_.size() - 1);
  }

  uint32_t set_index(const CharSet& set) {
    for (size_t i = 0; i < sets_.size(); ++i)
      if (sets_[i] == set) return static_cast<uint32_t>(i);
    if (sets_.size() == kMaxSets) throw TooComplex{};
    sets_.push_back(set);
    return static_cast<uint32_t>(sets_.size() - 1);
  }

  // Entry state of `node` followed by `next`.
  uint32_t build(const PatternNode& node, uint32_t next) {
    switch (node.kind) {
      case Kind::kEmpty:
        return next;
      case Kind::kSet:
        return add({.kind = NfaState::Kind::kSet, .set = set_index(node.set), .next = next});
      case Kind::kLookAhead:
        return add({.kind = NfaState::Kind::kLook,
                    .set = set_index(node.set),
                    .negative = node.negative,
                    .passes_at_end = node.negative,
                    .next = next});
      case Kind::kEnd:  // of a line, as the reference engine has it
        return add({.kind = NfaState::Kind::kLook,
                    .set = set_index(CharSet::range('\n', '\n')),
                    .passes_at_end = true,
                    .next = next});
      case Kind::kSequence:
        for (auto child = node.children.rbegin(); child != node.children.rend(); ++child)
          next = build(*child, next);
        return next;
      case Kind::kAlternation: {
        uint32_t entry = build(node.children.back(), next);
        for (size_t i = node.children.size() - 1; i-- > 0;) {
          const uint32_t preferred = build(node.children[i], next);
          entry = add({.kind = NfaState::Kind::kSplit, .next = preferred, .other = entry});
        }
        return entry;
      }
      case Kind::kRepeat:
        return build_repeat(node, next);
    }
    return next;
  }

  uint32_t build_repeat(const PatternNode& node, uint32_t next) {
    const PatternNode& body = node.children[0];
    const auto choice = [&](uint32_t again, uint32_t leave) {
      return node.lazy ? NfaState{.kind = NfaState::Kind::kSplit, .next = leave, .other = again}
                       : NfaState{.kind = NfaState::Kind::kSplit, .next = again, .other = leave};
    };
    uint32_t entry = next;
    if (node.max_count == PatternNode::kUnbounded) {
      const uint32_t loop = add(choice(next, next));
      const uint32_t again = build(body, loop);
      nfa_[loop] = choice(again, next);
      entry = loop;
    } else {
      for (int i = node.min_count; i < node.max_count; ++i)
        entry = add(choice(build(body, entry), next));
    }
    for (int i = 0; i < node.min_count; ++i) entry = build(body, entry);
    return entry;
  }

  // Two code points share a class when no set of the pattern tells them apart.
  void number_classes() {
    std::map<char32_t, uint64_t> flips;  // code point -> sets that begin or end there
    flips[0] = 0;
    for (size_t i = 0; i < sets_.size(); ++i)
      for (const CodePointRange& range : sets_[i].ranges()) {
        flips[range.first] ^= 1ull << i;
        flips[range.last + 1] ^= 1ull << i;
      }
    std::vector<uint8_t> class_of(0x110000);
    std::map<uint64_t, uint8_t> class_of_signature;
    uint64_t signature = 0;
    for (auto flip = flips.begin(); flip != flips.end() && flip->first < 0x110000; ++flip) {
      signature ^= flip->second;
      const auto [entry, is_new] =
          class_of_signature.try_emplace(signature, static_cast<uint8_t>(signatures_.size()));
      if (is_new) signatures_.push_back(signature);
      if (signatures_.size() > kMaxClasses) throw TooComplex{};
      const auto next = std::next(flip);
      const char32_t last = next == flips.end() ? 0x110000 : next->first;
      std::fill(class_of.begin() + flip->first, class_of.begin() + last, entry->second);
    }
    out_.class_count_ = static_cast<uint32_t>(signatures_.size());
    std::copy_n(class_of.begin(), 128, out_.ascii_class_);
    std::map<std::string, uint16_t> pages;
    for (size_t first = 0; first < class_of.size(); first += 256) {
      const std::string page(class_of.begin() + first, class_of.begin() + first + 256);
      const auto [entry, is_new] = pages.try_emplace(page, static_cast<uint16_t>(pages.size()));
      if (is_new) out_.class_pages_.insert(out_.class_pages_.end(), page.begin(), page.end());
      out_.page_of_.push_back(entry->second);
    }
  }

  bool in_set(uint32_t char_class, uint32_t set) const {
    return char_class < out_.class_count_ && (signatures_[char_class] >> set & 1) != 0;
  }

  // Follows one thread until it consumes the character or matches; false once a match cuts off
  // every thread of lower priority.
  bool follow(uint32_t from, uint32_t char_class, std::vector<uint32_t>& targets) {
    std::vector<uint32_t> stack{from};
    while (!stack.empty()) {
      const uint32_t index = stack.back();
      stack.pop_back();
      if (visited_[index] == generation_) continue;
      visited_[index] = generation_;
      const NfaState& state = nfa_[index];
      const bool at_end = char_class == out_.class_count_;
      switch (state.kind) {
        case NfaState::Kind::kMatch:
          return false;
        case NfaState::Kind::kSplit:
          stack.push_back(state.other);
          stack.push_back(state.next);
          break;
        case NfaState::Kind::kLook:
          if (at_end ? state.passes_at_end : in_set(char_class, state.set) != state.negative)
            stack.push_back(state.next);
          break;
        case NfaState::Kind::kSet:
          if (in_set(char_class, state.set) && targeted_[state.next] != generation_) {
            targeted_[state.next] = generation_;
            targets.push_back(state.next);
          }
          break;
      }
    }
    return true;
  }

  void determinize(uint32_t start) {
    std::map<std::vector<uint32_t>, uint16_t> number{{{}, 0}, {{start}, 1}};
    std::vector<std::vector<uint32_t>> states{{}, {start}};
    const uint32_t stride = out_.class_count_ + 1;
    visited_.assign(nfa_.size(), 0);
    targeted_.assign(nfa_.size(), 0);
    for (size_t state = 0; state < states.size(); ++state) {
      for (uint32_t char_class = 0; char_class < stride; ++char_class) {
        ++generation_;
        std::vector<uint32_t> targets;
        bool matched = false;
        for (const uint32_t thread : states[state])
          if (!follow(thread, char_class, targets)) {
            matched = true;
            break;
          }
        const auto [entry, is_new] =
            number.try_emplace(targets, static_cast<uint16_t>(states.size()));
        if (is_new) states.push_back(targets);
        if (states.size() > kMaxDfaStates) throw TooComplex{};
        out_.transitions_.push_back(entry->second | (matched ? Pattern::kMatchBefore : 0));
      }
    }
  }

  void note_starts(const PatternNode& tree) {
    const uint32_t stride = out_.class_count_ + 1;
    for (uint32_t c = 0; c < out_.class_count_; ++c) {
      const bool dead = (out_.transitions_[stride + c] & Pattern::kStateMask) == 0;
      out_.cannot_start_.push_back(dead);
      out_.in_leading_repeat_.push_back(false);
    }
    for (size_t byte = 0; byte < 128; ++byte)
      out_.skip_ascii_[byte] = out_.cannot_start_[out_.ascii_class_[byte]];
    const PatternNode* first = &tree;
    while (first->kind == Kind::kSequence && !first->children.empty()) first = &first->children[0];
    if (first->kind != Kind::kRepeat || first->max_count != PatternNode::kUnbounded) return;
    if (first->min_count > 1 || first->children[0].kind != Kind::kSet) return;
    for (uint32_t c = 0; c < out_.class_count_; ++c)
      out_.in_leading_repeat_[c] = in_set(c, set_index(first->children[0].set));
  }

  Pattern out_;
  std::vector<NfaState> nfa_;
  std::vector<CharSet> sets_;
  std::vector<uint64_t> signatures_;          // [class_count] bit i: the class lies in set i
  std::vector<uint32_t> visited_, targeted_;  // [num nfa states] the generation that last did so
  uint32_t generation_ = 0;
};

Result<Pattern> Pattern::compile(const PatternNode& tree) {
  try {
    return PatternCompiler().compile(tree);
  } catch (const TooComplex&) {
    return input_error("the pattern needs too large an automaton");
  }
}

size_t Pattern::match_end(std::string_view text, size_t begin, uint64_t& work) const {
  const uint32_t stride = class_count_ + 1;
  size_t position = begin, end = kNoMatch;
  uint32_t state = 1;
  while (position < text.size()) {
    const Char c = char_at(text, position);
    const uint16_t transition = transitions_[state * stride + c.char_class];
    ++work;
    if (transition & kMatchBefore) end = position;
    state = transition & kStateMask;
    if (state == 0) return end == begin ? kNoMatch : end;
    position += c.length_bytes;
  }
  if (transitions_[state * stride + class_count_] & kMatchBefore) end = position;
  return end == begin ? kNoMatch : end;
}

size_t Pattern::skip_impossible(std::string_view text, size_t position) const {
  while (position < text.size()) {
    const auto byte = static_cast<unsigned char>(text[position]);
    if (byte < 0x80) {
      if (!skip_ascii_[byte]) break;
      ++position;
      continue;
    }
    const Char c = char_at(text, position);
    if (!cannot_start_[c.char_class]) break;
    position += c.length_bytes;
  }
  return position;
}

// A pattern that starts with X+ or X* and fails here fails everywhere in this run of X, since the
// repeat could have given the run's head away. Without this, \s+$ would be quadratic in spaces.
size_t Pattern::after_failure(std::string_view text, size_t position) const {
  Char c = char_at(text, position);
  if (!in_leading_repeat_[c.char_class]) return position + c.length_bytes;
  while (position < text.size() && in_leading_repeat_[(c = char_at(text, position)).char_class])
    position += c.length_bytes;
  return position;
}

void Pattern::refuse_work() {
  throw_error(ErrorCode::kUsage,
              "the tokenizer's pre-tokenizer pattern takes quadratic time on this text");
}

}  // namespace foresail
