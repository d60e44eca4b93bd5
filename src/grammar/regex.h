// Regular expressions as grammars: the common part of the dialects, without what looks around or
// back. Matching has no order here, so lazy and greedy are the same. Any thread.
#pragma once

#include <functional>
#include <string_view>

#include "grammar/char_ranges.h"
#include "grammar/grammar.h"

namespace foresail {

// How one character of a match is written in the output: from `from` to `to`, all of `chars`.
using SpellChars =
    std::function<void(GrammarBuilder&, int32_t from, const CharRanges& chars, int32_t to)>;

struct RegexOptions {
  // The match may begin and end anywhere in the text, as a schema's `pattern` says, where no anchor
  // says otherwise. Else it is all of the text.
  bool search = false;
  // Limits on the characters of the text; most < 0: none. Only where they change nothing, or the
  // expression is one repeated class.
  int64_t least_chars = 0, most_chars = -1;
};

// The path of all texts that match. Throws GrammarFault, naming what is not supported.
int32_t add_regex(GrammarBuilder& builder, int32_t from, std::string_view pattern,
                  const RegexOptions& options, const SpellChars& spell);

}  // namespace foresail
