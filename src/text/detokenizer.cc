#include "text/detokenizer.h"

#include "base/utf8.h"

namespace foresail {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  held_ += tokenizer_.token_bytes(id);
  const size_t certain_bytes = held_.size() - incomplete_utf8_tail(held_);
  std::string out = replace_invalid_utf8(std::string_view(held_).substr(0, certain_bytes));
  held_.erase(0, certain_bytes);
  return out;
}

std::string Detokenizer::flush() {
  std::string out = replace_invalid_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace foresail
