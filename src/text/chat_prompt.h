// A conversation to token ids: only what the template itself wrote may become control tokens.
#pragma once

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace foresail {

std::vector<int32_t> encode_chat(std::span<const TemplatePiece> pieces, const Tokenizer& tokenizer);
// The same of a conversation that goes on after `said`, ids of a prompt and its answer. They are
// kept where they spell its start: read again, a text that was generated may make other ids.
std::vector<int32_t> encode_chat_after(std::span<const int32_t> said,
                                       std::span<const TemplatePiece> pieces,
                                       const Tokenizer& tokenizer);
Result<std::vector<int32_t>> chat_prompt(const ChatTemplate& chat_template,
                                         const Tokenizer& tokenizer, const RenderInput& input);

}  // namespace foresail
