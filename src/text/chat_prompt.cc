#include "text/chat_prompt.h"

#include "text/render_input.h"

namespace foresail {

std::vector<int32_t> encode_chat(std::span<const TemplatePiece> pieces,
                                 const Tokenizer& tokenizer) {
  std::vector<PromptPiece> prompt;
  for (const TemplatePiece& piece : pieces) {
    if (!piece.from_template) {
      prompt.push_back({-1, piece.text});
      continue;
    }
    for (PromptPiece& part : tokenizer.split_control(piece.text)) prompt.push_back(std::move(part));
  }
  std::vector<int32_t> ids = tokenizer.encode_pieces(prompt);
  // Templates of this family write the begin token themselves: never twice, never missing.
  if (tokenizer.adds_bos() && tokenizer.bos_id() && (ids.empty() || ids[0] != *tokenizer.bos_id()))
    ids.insert(ids.begin(), *tokenizer.bos_id());
  return ids;
}

Result<std::vector<int32_t>> chat_prompt(const ChatTemplate& chat_template,
                                         const Tokenizer& tokenizer, const RenderInput& input) {
  const auto pieces = chat_template.render_pieces(input);
  if (!pieces) return tl::unexpected<InputError>(pieces.error());
  return encode_chat(*pieces, tokenizer);
}

}  // namespace foresail
