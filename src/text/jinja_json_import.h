// JSON of a request as template values.
#pragma once

#include "base/json_types.h"
#include "text/jinja_heap.h"

namespace foresail::jinja {

// Every string and scalar is marked as conversation data.
Value import_json(Heap& heap, const OrderedJson& json);
// A list of messages: like import_json, but the usual role names count as template text.
Value import_messages(Heap& heap, const OrderedJson& messages);

}  // namespace foresail::jinja
