#include "grammar/grammar.h"

#include <algorithm>
#include <iterator>

namespace foresail {
namespace {

// Where things begin in a list sorted by key: [key count + 1].
std::vector<int32_t> begins(std::span<const int32_t> keys, int32_t key_count) {
  std::vector<int32_t> begin(key_count + 1);
  for (const int32_t key : keys) ++begin[key + 1];
  for (int32_t key = 0; key < key_count; ++key) begin[key + 1] += begin[key];
  return begin;
}

}  // namespace

void refuse_grammar(std::string message, std::string param) {
  throw GrammarFault{{std::move(message), std::move(param)}};
}

int32_t Grammar::class_of(int32_t symbol) const {
  const auto after = std::upper_bound(class_begin_.begin(), class_begin_.end(), symbol);
  return static_cast<int32_t>(after - class_begin_.begin()) - 1;
}

int32_t GrammarBuilder::state() {
  if (static_cast<size_t>(state_count_) > kMaxEdges)
    refuse_grammar("is too large: shorten it or lower its repetitions");
  return state_count_++;
}

GrammarBuilder::Rule GrammarBuilder::rule() {
  const Rule rule{state(), state()};
  rule_ends_.push_back(rule.end);
  return rule;
}

void GrammarBuilder::add(int32_t from, Grammar::Edge edge) {
  if (edges_.size() >= kMaxEdges)
    refuse_grammar("is too large: shorten it or lower its repetitions");
  from_.push_back(from);
  edges_.push_back(edge);
}

int32_t GrammarBuilder::symbol(int32_t from, int32_t low, int32_t high) {
  const int32_t to = state();
  symbols(from, low, high, to);
  return to;
}

int32_t GrammarBuilder::literal(int32_t from, std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    from = symbol(from, byte, byte);
  }
  return from;
}

int32_t GrammarBuilder::one_of(int32_t from, std::vector<std::string> literals) {
  std::sort(literals.begin(), literals.end());
  const int32_t to = state();
  // The states of the literal before, one per byte: what a literal shares with it, it shares.
  std::vector<int32_t> path = {from};
  const std::string* before = nullptr;
  for (const std::string& one : literals) {
    size_t shared = 0;
    if (before != nullptr)
      shared =
          std::mismatch(one.begin(), one.end(), before->begin(), before->end()).first - one.begin();
    path.resize(shared + 1);
    for (size_t i = shared; i < one.size(); ++i) {
      const auto byte = static_cast<uint8_t>(one[i]);
      path.push_back(symbol(path.back(), byte, byte));
    }
    skip(path.back(), to);
    before = &one;
  }
  return to;
}

int32_t GrammarBuilder::call(int32_t from, const Rule& rule) {
  const int32_t to = state();
  call(from, rule, to);
  return to;
}

int32_t GrammarBuilder::repeat(int32_t from, const Rule& rule, int64_t least, int64_t most) {
  if (std::max(least, most) > static_cast<int64_t>(kMaxEdges))
    refuse_grammar("is too large: shorten it or lower its repetitions");
  for (int64_t i = 0; i < least; ++i) from = call(from, rule);
  const int32_t end = state();
  if (most < 0) {
    const int32_t loop = state();
    skip(from, loop);
    call(loop, rule, loop);
    skip(loop, end);
    return end;
  }
  for (int64_t i = least; i < most; ++i) {
    skip(from, end);
    from = call(from, rule);
  }
  skip(from, end);
  return end;
}

// The states from which their rule can be completed.
std::vector<bool> GrammarBuilder::find_live() const {
  // What a state waits for: the edges into it, and the calls of the rule that it starts.
  std::vector<int32_t> waits_for, waiting;
  for (size_t i = 0; i < edges_.size(); ++i) {
    waits_for.push_back(edges_[i].target);
    waiting.push_back(static_cast<int32_t>(i));
    if (edges_[i].low != Grammar::kCall) continue;
    waits_for.push_back(edges_[i].high);
    waiting.push_back(static_cast<int32_t>(i));
  }
  const std::vector<int32_t> begin = begins(waits_for, state_count_);
  std::vector<int32_t> sorted(waiting.size()), next = begin;
  for (size_t i = 0; i < waiting.size(); ++i) sorted[next[waits_for[i]]++] = waiting[i];

  std::vector<bool> live(state_count_);
  std::vector<int32_t> todo = rule_ends_;
  for (const int32_t end : todo) live[end] = true;
  while (!todo.empty()) {
    const int32_t reached = todo.back();
    todo.pop_back();
    for (int32_t i = begin[reached]; i < begin[reached + 1]; ++i) {
      const Grammar::Edge& edge = edges_[sorted[i]];
      const int32_t from = from_[sorted[i]];
      if (live[from] || !live[edge.target]) continue;
      if (edge.low == Grammar::kCall && !live[edge.high]) continue;
      live[from] = true;
      todo.push_back(from);
    }
  }
  return live;
}

Result<GrammarPtr> GrammarBuilder::finish(const Rule& rule) && {
  const std::vector<bool> live = find_live();
  if (!live[rule.start]) return input_error("allows no output at all");
  auto grammar = std::make_shared<Grammar>();
  grammar->start_ = rule.start;
  size_t kept = 0;
  for (size_t i = 0; i < edges_.size(); ++i) {
    const Grammar::Edge& edge = edges_[i];
    if (!live[edge.target] || (edge.low == Grammar::kCall && !live[edge.high])) continue;
    from_[kept] = from_[i];
    edges_[kept++] = edge;
  }
  from_.resize(kept);
  edges_.resize(kept);
  grammar->edge_begin_ = begins(from_, state_count_);
  grammar->edges_.resize(kept);
  std::vector<int32_t> next = grammar->edge_begin_;
  for (size_t i = 0; i < kept; ++i) grammar->edges_[next[from_[i]]++] = edges_[i];

  grammar->ends_rule_.resize(state_count_);
  for (const int32_t end : rule_ends_) grammar->ends_rule_[end] = true;
  grammar->only_ends_.resize(state_count_);
  for (int32_t state = 0; state < state_count_; ++state) {
    int32_t at = state;
    // Chains of skips are short where it matters; a longer one costs a frame, no more.
    for (int hops = 0; hops < 8; ++hops) {
      const auto edges = grammar->edges(at);
      if (edges.empty() && grammar->ends_rule_[at]) grammar->only_ends_[state] = true;
      if (edges.size() != 1 || edges[0].low != Grammar::kSkip || grammar->ends_rule_[at]) break;
      at = edges[0].target;
    }
  }

  std::vector<int32_t>& borders = grammar->class_begin_;
  borders = {0};
  for (const Grammar::Edge& edge : edges_) {
    if (edge.low < 0) continue;
    borders.push_back(edge.low);
    if (edge.high < kLastSymbol) borders.push_back(edge.high + 1);
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return GrammarPtr(std::move(grammar));
}

}  // namespace foresail
