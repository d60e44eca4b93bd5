// Arithmetic, membership, iteration and slicing with Python's rules.
#pragma once

#include <optional>

#include "text/jinja_ast.h"
#include "text/jinja_heap.h"

namespace foresail::jinja {

Value binary(Heap& heap, ExprKind op, const Value& a, const Value& b);
Integer truncated(double value);  // int(value); throws when it does not fit
Value negate(const Value& value);
bool contains(Heap& heap, const Value& container, const Value& item);

// What a for loop would visit. Lists come back as themselves, so growth shows; a generator is used
// up.
ListObject& iterate(Heap& heap, const Value& value);
int64_t length_of(Heap& heap, const Value& value);  // throws where len() would
Value make_range(Heap& heap, Integer start, Integer stop, Integer step);

struct SliceBounds {
  std::optional<Integer> start, stop, step;
};
Value slice(Heap& heap, const Value& value, const SliceBounds& bounds);  // throws if not sliceable
// value[index] of a string or sequence; empty when out of range or not indexable by integers.
std::optional<Value> element(Heap& heap, const Value& value, Integer index);

}  // namespace foresail::jinja
