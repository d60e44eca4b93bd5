// The public Chat as a chat template takes it. Pure.
#pragma once

#include "base/result.h"
#include "foresail/chat.h"
#include "text/render_input.h"

namespace foresail {

Result<RenderInput> chat_input(const Chat& chat);

}  // namespace foresail
