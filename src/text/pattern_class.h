// Character classes of regular expressions: [...], \p{...}, \s and the escapes of one character.
#pragma once

#include "text/char_set.h"
#include "text/pattern_cursor.h"

namespace foresail {

// The cursor stands after the opening bracket.
CharSet parse_class(PatternCursor& cursor, int depth);
// The cursor stands after the backslash.
CharSet parse_class_escape(PatternCursor& cursor);

}  // namespace foresail
