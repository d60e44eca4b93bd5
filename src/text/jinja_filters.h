// The filter table. A filter takes its input first and evaluated arguments after.
#pragma once

#include <string_view>

#include "text/jinja_interpreter.h"

namespace foresail::jinja {

using Filter = Value (*)(Interpreter&, const Value& input, const Arguments&);

Filter find_text_filter(std::string_view name);  // null when unknown
Filter find_sequence_filter(std::string_view name);
Filter find_number_filter(std::string_view name);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

// "a.b.0": the item path that attribute arguments name. `fallback` stands in for undefined steps.
Value attribute_path(Heap& heap, Value item, const Value& path, const Value* fallback = nullptr);
// Lower case for strings unless case_sensitive: the key that sort and unique compare.
Value comparison_key(Heap& heap, const Value& value, bool case_sensitive);

}  // namespace foresail::jinja
