// The grammars of an engine: compiles what requests ask for, and keeps the matchers of those that
// were used latest, so that requests with the same grammar share its masks. Costs nothing until the
// first grammar comes. Owner: the engine loop or a generator. Thread rule: see members.
#pragma once

#include <deque>
#include <mutex>
#include <optional>

#include "foresail/request.h"
#include "grammar/grammar_cache.h"
#include "grammar/output_guide.h"
#include "text/tokenizer.h"

namespace foresail {

class OutputGrammars {
 public:
  // tokenizer may be null: then grammars are refused. Both outlive the object.
  OutputGrammars(const Tokenizer* tokenizer, std::span<const int64_t> end_ids, int64_t vocab_size)
      : tokenizer_(tokenizer), end_ids_(end_ids), vocab_size_(vocab_size) {}

  // Sets request.grammar from its output format, or says what is wrong. Tries the grammar's first
  // token, so that most of those that are too complex are refused here. Any thread.
  std::optional<InputError> prepare(Request& request) const;
  // Whether prepare() knows what comes of this one, which may be null; otherwise it takes up to a
  // tenth of a second. Any thread.
  bool knows(const GrammarPtr& grammar) const;
  // The beginning of a prepared request's output. One thread.
  OutputGuide guide(const Request& request);
  // The refusal of a grammar that is too complex.
  static std::string too_complex(const std::string& limit);

 private:
  std::shared_ptr<GrammarMatcher> matcher(const GrammarPtr& grammar);
  std::shared_ptr<const TokenTrie> make_trie() const;
  std::string find_exceeded_limit(const GrammarPtr& grammar) const;
  std::optional<std::string> known_limit(const GrammarPtr& grammar) const;

  const Tokenizer* tokenizer_;
  std::span<const int64_t> end_ids_;
  int64_t vocab_size_;
  mutable GrammarCache cache_;
  mutable std::once_flag trie_made_;
  mutable std::shared_ptr<const TokenTrie> trie_;
  std::vector<std::shared_ptr<GrammarMatcher>> matchers_;  // the latest first
  struct Trial {
    std::weak_ptr<const Grammar> grammar;
    std::string exceeded_limit;  // empty: it can be followed
  };
  mutable std::mutex trials_mutex_;
  mutable std::deque<Trial> trials_;  // the latest last
};

}  // namespace foresail
