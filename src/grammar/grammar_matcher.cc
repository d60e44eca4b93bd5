#include "grammar/grammar_matcher.h"

#include <fmt/core.h>

#include <algorithm>

namespace foresail {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

}  // namespace

GrammarMatcher::GrammarMatcher(GrammarPtr grammar, std::shared_ptr<const TokenTrie> tokens)
    : grammar_(std::move(grammar)),
      tokens_(std::move(tokens)),
      nothing_((tokens_->vocab_size() + 63) / 64) {
  for (int32_t byte = 0; byte < 256; ++byte) byte_class_.push_back(grammar_->class_of(byte));
  for (const int32_t id : tokens_->control_ids())
    control_class_.push_back(grammar_->class_of(control_symbol(id)));
  todo_.push_back(frame(grammar_->start(), -1));
  start_ = settle();
}

int32_t GrammarMatcher::frame(int32_t state, int32_t parent) {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(parent);
  const auto [found, is_new] = frame_of_.try_emplace(key, static_cast<int32_t>(frames_.size()));
  if (is_new) {
    frames_.push_back({state, parent});
    seen_.push_back(0);
    bytes_ += 64;
  }
  return found->second;
}

int32_t GrammarMatcher::settle() {
  ++settle_count_;
  Config config;
  while (!todo_.empty() && !exhausted()) {
    gave_up_ = work_ > call_end_;
    const int32_t at = todo_.back();
    todo_.pop_back();
    ++work_;
    if (std::exchange(seen_[at], settle_count_) == settle_count_) continue;
    const auto [state, parent] = frames_[at];
    bool waits = false;
    for (const Grammar::Edge& edge : grammar_->edges(state)) {
      ++work_;
      if (edge.low >= 0) {
        waits = true;
      } else if (edge.low == Grammar::kSkip) {
        todo_.push_back(frame(edge.target, parent));
      } else {
        const int32_t back = grammar_->only_ends(edge.target) ? parent : frame(edge.target, parent);
        todo_.push_back(frame(edge.high, back));
      }
    }
    if (waits) config.frames.push_back(at);
    if (!grammar_->ends_rule(state)) continue;
    if (parent < 0)
      config.can_end = true;
    else
      todo_.push_back(parent);
  }
  todo_.clear();
  if (exhausted() || (config.frames.empty() && !config.can_end)) return kDead;

  std::sort(config.frames.begin(), config.frames.end());
  uint64_t hash = config.can_end ? 1 : 0;
  for (const int32_t one : config.frames) hash = mix(hash, static_cast<uint64_t>(one));
  const auto [begin, end] = config_of_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (configs_[it->second].frames == config.frames &&
        configs_[it->second].can_end == config.can_end)
      return it->second;
  const auto id = static_cast<int32_t>(configs_.size());
  config_of_.emplace(hash, id);
  bytes_ += 128 + 4 * static_cast<int64_t>(config.frames.size()) + 4 * grammar_->class_count();
  configs_.push_back(std::move(config));
  steps_.resize(steps_.size() + grammar_->class_count(), kUnknown);
  return id;
}

int32_t GrammarMatcher::step(int32_t state, int32_t symbol_class) {
  const size_t at = static_cast<size_t>(state) * grammar_->class_count() + symbol_class;
  if (steps_[at] != kUnknown) return steps_[at];
  const int32_t symbol = grammar_->any_of_class(symbol_class);
  for (size_t i = 0; i < configs_[state].frames.size(); ++i) {
    const auto [grammar_state, parent] = frames_[configs_[state].frames[i]];
    for (const Grammar::Edge& edge : grammar_->edges(grammar_state)) {
      ++work_;
      if (edge.low >= 0 && edge.low <= symbol && symbol <= edge.high)
        todo_.push_back(frame(edge.target, parent));
    }
  }
  const int32_t next = settle();
  return steps_[at] = next;
}

int32_t GrammarMatcher::advance(int32_t state, int32_t token) {
  call_end_ = work_ + kMaxCallWork;
  if (state == kDead || token < 0 || token >= tokens_->vocab_size()) return kDead;
  if (tokens_->is_control(token)) return step(state, grammar_->class_of(control_symbol(token)));
  const std::string_view bytes = tokens_->bytes(token);
  if (bytes.empty()) return kDead;
  for (const char c : bytes) {
    state = step(state, byte_class_[static_cast<uint8_t>(c)]);
    if (state == kDead) return kDead;
  }
  return state;
}

std::vector<uint64_t> GrammarMatcher::find_allowed(int32_t state) {
  std::vector<uint64_t> mask(nothing_.size());
  const auto allow = [&](int32_t id) { mask[id / 64] |= uint64_t{1} << (id % 64); };
  for (size_t i = 0; i < control_class_.size(); ++i)
    if (step(state, control_class_[i]) != kDead) allow(tokens_->control_ids()[i]);
  const std::span<const TokenTrie::Node> nodes = tokens_->nodes();
  std::vector<int32_t> path(tokens_->max_depth() + 1);  // [depth] the state there
  path[0] = state;
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const int32_t next = step(path[node.depth - 1], byte_class_[node.byte]);
    if (next == kDead) {
      i = node.end;
      continue;
    }
    path[node.depth] = next;
    for (const int32_t id : tokens_->tokens_at(node)) allow(id);
    ++i;
  }
  return mask;
}

std::span<const uint64_t> GrammarMatcher::allowed(int32_t state) {
  if (state == kDead) return nothing_;
  const auto found = masks_.find(state);
  if (found != masks_.end()) return found->second;
  if ((masks_.size() + 1) * nothing_.size() * sizeof(uint64_t) > kMaxMaskBytes) masks_.clear();
  call_end_ = work_ + kMaxCallWork;
  std::vector<uint64_t> mask = find_allowed(state);
  if (exhausted()) return nothing_;
  return masks_[state] = std::move(mask);
}

std::string GrammarMatcher::limit() const {
  if (gave_up_) return fmt::format("more than {} steps of work for one token", kMaxCallWork);
  if (work_ > kMaxWork) return fmt::format("more than {} steps of work in all", kMaxWork);
  return fmt::format("more than {} bytes of states", kMaxBytes);
}

}  // namespace foresail
