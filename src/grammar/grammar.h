// What an output may be: a context-free grammar over symbols, kept as states and edges. A symbol is
// a byte of the output or, from 256 on, a control token by its id.
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace foresail {

constexpr int32_t control_symbol(int32_t id) {
  return 256 + id;
}
inline constexpr int32_t kLastSymbol = control_symbol((1 << 22) - 1);

class Grammar {
 public:
  static constexpr int32_t kSkip = -1, kCall = -2;
  // low >= 0: any symbol from low to high leads to target. kSkip: target without a symbol. kCall:
  // the rule that starts in state `high`, then target.
  struct Edge {
    int32_t low = kSkip;
    int32_t high = 0;
    int32_t target = 0;
  };

  int32_t start() const { return start_; }
  std::span<const Edge> edges(int32_t state) const {
    return std::span(edges_).subspan(edge_begin_[state],
                                     edge_begin_[state + 1] - edge_begin_[state]);
  }
  bool ends_rule(int32_t state) const { return ends_rule_[state]; }
  // Nothing but the end of its rule follows: a call that returns here need not return.
  bool only_ends(int32_t state) const { return only_ends_[state]; }

  // Symbols that no edge tells apart are of one class.
  int32_t class_count() const { return static_cast<int32_t>(class_begin_.size()); }
  int32_t class_of(int32_t symbol) const;
  int32_t any_of_class(int32_t symbol_class) const { return class_begin_[symbol_class]; }

 private:
  friend class GrammarBuilder;
  std::vector<Edge> edges_;          // by state
  std::vector<int32_t> edge_begin_;  // [state count + 1]
  std::vector<bool> ends_rule_, only_ends_;
  std::vector<int32_t> class_begin_;  // ascending, the first is 0
  int32_t start_ = 0;
};

using GrammarPtr = std::shared_ptr<const Grammar>;

// Thrown inside the compilers; what they return is a Result.
struct GrammarFault {
  InputError error;
};
[[noreturn]] void refuse_grammar(std::string message, std::string param = {});

// Grows a grammar by paths: `from` is a state, what comes back is where the path ends.
// One thread. Throws GrammarFault where the grammar gets too large.
class GrammarBuilder {
 public:
  static constexpr size_t kMaxEdges = 200'000;

  struct Rule {
    int32_t start = 0;
    int32_t end = 0;  // reaching it completes the rule
  };

  int32_t state();
  Rule rule();
  void symbols(int32_t from, int32_t low, int32_t high, int32_t to) { add(from, {low, high, to}); }
  void skip(int32_t from, int32_t to) { add(from, {Grammar::kSkip, 0, to}); }
  void call(int32_t from, const Rule& rule, int32_t to) {
    add(from, {Grammar::kCall, rule.start, to});
  }

  int32_t symbol(int32_t from, int32_t low, int32_t high);
  int32_t literal(int32_t from, std::string_view bytes);
  // One of the literals; shared beginnings are shared.
  int32_t one_of(int32_t from, std::vector<std::string> literals);
  int32_t call(int32_t from, const Rule& rule);
  // The rule from `least` to `most` times; most < 0: any number.
  int32_t repeat(int32_t from, const Rule& rule, int64_t least, int64_t most);

  // What `rule` generates. Refuses when that is nothing.
  Result<GrammarPtr> finish(const Rule& rule) &&;

 private:
  void add(int32_t from, Grammar::Edge edge);
  std::vector<bool> find_live() const;

  std::vector<int32_t> from_;  // of edges_
  std::vector<Grammar::Edge> edges_;
  std::vector<int32_t> rule_ends_;
  int32_t state_count_ = 0;
};

}  // namespace foresail
