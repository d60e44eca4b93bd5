// Python's str() and repr() of values.
#pragma once

#include <string>

#include "text/jinja_heap.h"

namespace foresail::jinja {

std::string integer_text(Integer value);
std::string float_text(double value);  // repr(float): shortest digits that read back
void append_text(Heap& heap, Text& out, const Value& value);  // str(value)
Text text_of(Heap& heap, const Value& value);                 // str(value)
// repr(value). A container that holds conversation data is tainted as a whole.
Text repr_of(Heap& heap, const Value& value);

}  // namespace foresail::jinja
