// A conversation to token ids: only what the template itself wrote may become control tokens.
#pragma once

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace foresail {

std::vector<int32_t> encode_chat(std::span<const TemplatePiece> pieces, const Tokenizer& tokenizer);
Result<std::vector<int32_t>> chat_prompt(const ChatTemplate& chat_template,
                                         const Tokenizer& tokenizer, const RenderInput& input);

}  // namespace foresail
