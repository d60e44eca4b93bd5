// The `tojson` filter: Python's json.dumps with ensure_ascii off by default.
#pragma once

#include "text/jinja_heap.h"

namespace foresail::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;  // a newline and `indent` per level
  std::string indent;   // of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Text that holds conversation data is tainted as a whole.
Text json_of(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace foresail::jinja
