// Python's "..." % values and "...".format(...).
#pragma once

#include "text/jinja_arguments.h"
#include "text/jinja_heap.h"

namespace foresail::jinja {

Text percent_format(Heap& heap, const Text& format, const Value& values);
Text brace_format(Heap& heap, const Text& format, const Arguments& arguments);

}  // namespace foresail::jinja
