// Any bytes as a regular expression and as a JSON schema: refused in one line, or a grammar that
// can be followed, whose masks agree with its steps and lead nowhere that cannot end.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "grammar/compile.h"
#include "grammar/grammar_matcher.h"

namespace {

using foresail::GrammarMatcher;

std::shared_ptr<const foresail::TokenTrie> tokens() {
  static const auto trie = [] {
    static std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.push_back(std::string(1, static_cast<char>(byte)));
    texts.insert(texts.end(), {"<control>", "{\"", "\": ", "\"}", "ab", "10", "true", "]]"});
    return std::make_shared<const foresail::TokenTrie>(
        std::vector<std::string_view>(texts.begin(), texts.end()), std::vector<int32_t>{256}, 264);
  }();
  return trie;
}

void follow(const foresail::Result<foresail::GrammarPtr>& grammar, const uint8_t* data,
            size_t size) {
  if (!grammar) {
    if (grammar.error().message.empty()) std::abort();
    return;
  }
  GrammarMatcher matcher(*grammar, tokens());
  int32_t state = matcher.start();
  for (size_t i = 0; i < size && i < 64; ++i) {
    const auto mask = matcher.allowed(state);
    if (matcher.exhausted()) return;
    const std::vector<uint64_t> bits(mask.begin(), mask.end());
    int32_t chosen = -1;
    for (int32_t step = 0; step < 264; ++step) {
      const int32_t token = (data[i] + step) % 264;
      if ((bits[token / 64] >> (token % 64) & 1) == 0) continue;
      chosen = token;
      break;
    }
    if (chosen < 0) {
      if (!matcher.can_end(state) && !matcher.exhausted()) std::abort();  // a dead end
      return;
    }
    state = matcher.advance(state, chosen);
    if (state == GrammarMatcher::kDead && !matcher.exhausted()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  follow(foresail::compile_regex(text), data, size);
  follow(foresail::compile_schema_text(text), data, size);
  return 0;
}
