// Follows outputs through a grammar: which tokens may come next, and where each of them leads.
// States are numbers, so that a guess is undone by forgetting its state. The pushdown automaton is
// made deterministic as far as outputs go, and every step and mask is kept for all requests with
// the same grammar.
// Owner: the engine loop and the requests that use it. Thread rule: engine thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/token_trie.h"

namespace foresail {

class GrammarMatcher {
 public:
  // Nothing may follow, not even the end. A grammar may be too complex for its first state.
  static constexpr int32_t kDead = -1;

  GrammarMatcher(GrammarPtr grammar, std::shared_ptr<const TokenTrie> tokens);

  int32_t start() const { return start_; }
  // kDead: the token is not allowed.
  int32_t advance(int32_t state, int32_t token);
  // The output may end here.
  bool can_end(int32_t state) const { return state != kDead && configs_[state].can_end; }
  // It must: nothing may follow.
  bool must_end(int32_t state) const { return can_end(state) && configs_[state].frames.empty(); }
  // One bit per token of the vocabulary, lowest first. Valid until the next call of a member.
  std::span<const uint64_t> allowed(int32_t state);

  // Hostile grammars have too many states to be followed: from here on nothing is allowed. Work is
  // counted over the matcher's life, and for every call, so that none holds up its thread for long.
  bool exhausted() const { return gave_up_ || work_ > kMaxWork || bytes_ > kMaxBytes; }
  // The limit that was met, as the end of a sentence. Precondition: exhausted().
  std::string limit() const;
  bool nearly_exhausted() const { return work_ > kMaxWork / 2 || bytes_ > kMaxBytes / 2; }
  const GrammarPtr& grammar() const { return grammar_; }

 private:
  static constexpr int32_t kUnknown = -2;
  static constexpr int64_t kMaxWork = 4'000'000;    // frames and edges looked at
  static constexpr int64_t kMaxCallWork = 500'000;  // of them by one call
  static constexpr int64_t kMaxBytes = 64 << 20;
  static constexpr size_t kMaxMaskBytes = 16 << 20;

  // A state of the grammar, and the frame to go on with once its rule is complete; -1: none.
  struct Frame {
    int32_t state;
    int32_t parent;
  };
  // Where an output can be: all readings at once.
  struct Config {
    std::vector<int32_t> frames;  // ascending; all wait for a symbol
    bool can_end = false;
  };

  int32_t frame(int32_t state, int32_t parent);
  // The configuration of the frames in todo_ and all that they lead to without a symbol.
  int32_t settle();
  int32_t step(int32_t state, int32_t symbol_class);
  std::vector<uint64_t> find_allowed(int32_t state);

  GrammarPtr grammar_;
  std::shared_ptr<const TokenTrie> tokens_;
  std::vector<int32_t> byte_class_;     // [256]
  std::vector<int32_t> control_class_;  // [control id]

  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> frame_of_;  // by state and parent
  std::vector<Config> configs_;
  std::unordered_multimap<uint64_t, int32_t> config_of_;  // by hash
  std::vector<int32_t> steps_;                            // [config, class]
  std::unordered_map<int32_t, std::vector<uint64_t>> masks_;
  std::vector<uint64_t> nothing_;

  std::vector<int32_t> todo_;
  std::vector<int64_t> seen_;  // [frame] the latest settle() that met it
  int64_t settle_count_ = 0;
  int64_t work_ = 0;
  int64_t call_end_ = kMaxCallWork;  // of work_, for the call under way
  bool gave_up_ = false;             // a call met its end
  int64_t bytes_ = 0;
  int32_t start_ = 0;
};

}  // namespace foresail
