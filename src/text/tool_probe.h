// Whether a chat template tells the model about tools: found by rendering a conversation with one.
#pragma once

#include "text/chat_template.h"

namespace foresail {

// False also where no such conversation can be rendered: then nobody can tell.
bool leaves_out_tools(const ChatTemplate& chat_template);

}  // namespace foresail
