// String operations that keep the origin of every byte; used by methods and filters alike.
#pragma once

#include <vector>

#include "text/jinja_heap.h"
#include "text/jinja_unicode.h"

namespace foresail::jinja {

// characters null: white space.
Text strip(Heap& heap, const Text& text, const Text* characters, bool left, bool right);
// max_splits < 0: no limit. Pieces are string values.
std::vector<Value> split(Heap& heap, const Text& text, const Text& separator, int64_t max_splits,
                         bool from_right);
std::vector<Value> split_space(Heap& heap, const Text& text, int64_t max_splits, bool from_right);
std::vector<Value> split_lines(Heap& heap, const Text& text, bool keep_ends);
Text replace(Heap& heap, const Text& text, const Text& from, const Text& to,
             Integer count);  // count < 0: all

enum class Casing { kUpper, kLower, kCapitalize, kTitleMethod, kTitleFilter };
Text map_case(Heap& heap, const Text& text, Casing casing);

}  // namespace foresail::jinja
