// Incremental decoding of one output stream: what push() returns never holds a broken character.
// One per stream, used by one thread; the tokenizer must outlive it.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace foresail {

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that is certain now. All outputs in order equal Tokenizer::decode() of all ids.
  std::string push(int32_t id);
  // The end of the stream: a character that never became whole turns into U+FFFD.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string held_;  // at most 3 bytes between calls: the start of a character
};

}  // namespace foresail
