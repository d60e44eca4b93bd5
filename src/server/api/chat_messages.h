// The messages of a chat request, checked and brought to the form that templates read.
#pragma once

#include "server/api/json_object.h"

namespace foresail {

// Every message has a role that templates know and a content that is a string (or null beside tool
// calls); parts are joined by line breaks.
void read_messages(JsonObject& fields, OrderedJson& messages);

}  // namespace foresail
