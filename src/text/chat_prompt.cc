#include "text/chat_prompt.h"

#include <algorithm>

#include "text/render_input.h"

namespace foresail {
namespace {

std::vector<int32_t> encode_parts(std::span<const TemplatePiece> pieces,
                                  const Tokenizer& tokenizer) {
  std::vector<PromptPiece> prompt;
  for (const TemplatePiece& piece : pieces) {
    if (!piece.from_template) {
      prompt.push_back({-1, piece.text});
      continue;
    }
    for (PromptPiece& part : tokenizer.split_control(piece.text)) prompt.push_back(std::move(part));
  }
  return tokenizer.encode_pieces(prompt);
}

std::string text_of(std::span<const TemplatePiece> pieces) {
  std::string text;
  for (const TemplatePiece& piece : pieces) text += piece.text;
  return text;
}

std::vector<TemplatePiece> without_start(std::span<const TemplatePiece> pieces, size_t byte_count) {
  std::vector<TemplatePiece> rest;
  for (const TemplatePiece& piece : pieces) {
    const size_t cut = std::min(byte_count, piece.text.size());
    byte_count -= cut;
    if (cut < piece.text.size()) rest.push_back({piece.from_template, piece.text.substr(cut)});
  }
  return rest;
}

}  // namespace

std::vector<int32_t> encode_chat(std::span<const TemplatePiece> pieces,
                                 const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = encode_parts(pieces, tokenizer);
  // Templates of this family write the begin token themselves: never twice, never missing.
  if (tokenizer.adds_bos() && tokenizer.bos_id() && (ids.empty() || ids[0] != *tokenizer.bos_id()))
    ids.insert(ids.begin(), *tokenizer.bos_id());
  return ids;
}

std::vector<int32_t> encode_chat_after(std::span<const int32_t> said,
                                       std::span<const TemplatePiece> pieces,
                                       const Tokenizer& tokenizer) {
  const std::string text = text_of(pieces);
  std::span<const int32_t> spelled = said;
  // A begin token that the tokenizer put there and not the template.
  if (!said.empty() && said[0] == tokenizer.bos_id() &&
      !text.starts_with(tokenizer.token_bytes(said[0])))
    spelled = spelled.subspan(1);
  const std::string start = tokenizer.decode(spelled, false);
  if (start.empty() || !text.starts_with(start)) return encode_chat(pieces, tokenizer);
  std::vector<int32_t> ids(said.begin(), said.end());
  const std::vector<int32_t> rest = encode_parts(without_start(pieces, start.size()), tokenizer);
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

Result<std::vector<int32_t>> chat_prompt(const ChatTemplate& chat_template,
                                         const Tokenizer& tokenizer, const RenderInput& input) {
  const auto pieces = chat_template.render_pieces(input);
  if (!pieces) return tl::unexpected<InputError>(pieces.error());
  return encode_chat(*pieces, tokenizer);
}

}  // namespace foresail
