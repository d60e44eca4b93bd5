// Where one output is in its grammar. A value: a copy follows a guess, and forgetting the copy
// takes the guess back. Without a matcher anything goes. Engine thread.
#pragma once

#include <memory>
#include <vector>

#include "grammar/grammar_matcher.h"

namespace foresail {

class OutputGuide {
 public:
  OutputGuide() = default;
  // `end_ids`: tokens that end the output and may do so only where the grammar can end.
  OutputGuide(std::shared_ptr<GrammarMatcher> matcher, std::vector<int32_t> end_ids)
      : matcher_(std::move(matcher)), end_ids_(std::move(end_ids)), state_(matcher_->start()) {}

  // The next token is not free.
  bool guides() const { return matcher_ != nullptr && !ended_; }
  // An end token came, or nothing may follow.
  bool ended() const { return ended_; }
  // Nothing is allowed any more, because of this limit of the grammar's matcher; empty otherwise.
  std::string exceeded_limit() const {
    return matcher_ != nullptr && matcher_->exhausted() ? matcher_->limit() : std::string();
  }
  // One bit per token; empty where it does not guide.
  void find_allowed(std::vector<uint64_t>& mask) const;
  // False, and nothing changes, where the token is not allowed. Precondition: guides().
  bool advance(int32_t token);

 private:
  bool is_end(int32_t token) const;

  std::shared_ptr<GrammarMatcher> matcher_;
  std::vector<int32_t> end_ids_;
  int32_t state_ = 0;
  bool ended_ = false;
};

}  // namespace foresail
