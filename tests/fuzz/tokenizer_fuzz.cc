// Input: the text of a tokenizer.json (or, if it does not start with '{', of a tiktoken.model), a
// zero byte, then text to encode. A file is refused with Error or works; nothing else may happen.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "text/detokenizer.h"

namespace {

void use(const foresail::Tokenizer& tokenizer, std::string_view text) {
  for (const bool allow_control : {false, true}) {
    const auto ids = tokenizer.encode(text, {.add_bos = true, .allow_control = allow_control});
    foresail::Detokenizer stream(tokenizer, true);
    std::string streamed;
    for (const int32_t id : ids) {
      FORESAIL_CHECK(id >= 0 && static_cast<size_t>(id) < tokenizer.vocab_size(), "id {}", id);
      streamed += stream.push(id);
    }
    streamed += stream.flush();
    FORESAIL_CHECK(streamed == tokenizer.decode(ids, true), "streamed {}", streamed);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const std::string_view input(reinterpret_cast<const char*>(data), size_bytes);
  const size_t file_end = input.find('\0');
  const std::string_view file = input.substr(0, file_end);
  const std::string_view text = file_end == input.npos ? input : input.substr(file_end + 1);
  try {
    const auto tokenizer = file.starts_with('{') ? foresail::Tokenizer::from_json(file, {})
                                                 : foresail::Tokenizer::from_tiktoken(file, {});
    use(*tokenizer, text);
  } catch (const foresail::Error&) {
  }
  return 0;
}
