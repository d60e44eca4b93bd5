// A vocabulary of bytes and some longer tokens, and outputs drawn at random from a grammar.
#pragma once

#include <fmt/core.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <random>

#include "grammar/compile.h"
#include "grammar/grammar_matcher.h"

namespace foresail {

// Ids 0 to 255 are the bytes; 256 and 257 are control tokens; then pieces that cross all borders.
inline std::shared_ptr<const TokenTrie> byte_tokens() {
  static const auto trie = [] {
    static std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.push_back(std::string(1, static_cast<char>(byte)));
    texts.insert(texts.end(), {"<control>", "</control>"});
    for (const char* piece :
         {"{\"",      "\":",      "\": ", "\",\"", "\", \"", "},{",   "[[",    "]}",
          "true",     "false",    "null", "na",    "name",   "12",    "345",   "-1",
          "0.5",      "e1",       "ab",   "abc",   "foo",    "\\u00", "\\ud8", "\xC3\xA9",
          "\xF0\x9F", "\x98\x8A", " ",    "\"}",   "\"}\n",  "1,",    "ä\""})
      texts.push_back(piece);
    return std::make_shared<const TokenTrie>(
        std::vector<std::string_view>(texts.begin(), texts.end()), std::vector<int32_t>{256, 257},
        300);
  }();
  return trie;
}

inline bool is_allowed(std::span<const uint64_t> mask, int32_t token) {
  return (mask[token / 64] >> (token % 64) & 1) != 0;
}

// The state after these bytes, one token each; kDead: they are not allowed.
inline int32_t state_after(GrammarMatcher& matcher, std::string_view text) {
  int32_t state = matcher.start();
  for (const char c : text) {
    if (state == GrammarMatcher::kDead) break;
    state = matcher.advance(state, static_cast<uint8_t>(c));
  }
  return state;
}

inline bool matches(GrammarMatcher& matcher, std::string_view text) {
  const int32_t state = state_after(matcher, text);
  return state != GrammarMatcher::kDead && matcher.can_end(state);
}

// Draws tokens until the output may end and `random` says so, or must. Prefers to end after
// `patience` tokens by taking closing bytes first. Checks every mask against advance().
inline std::string draw_output(GrammarMatcher& matcher, std::mt19937& random, int patience) {
  std::string out;
  int32_t state = matcher.start();
  for (int count = 0; count < 4000; ++count) {
    if (matcher.must_end(state)) return out;
    if (matcher.can_end(state) && (count > patience || random() % 8 == 0)) return out;
    const auto mask = matcher.allowed(state);
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < 300; ++token)
      if (is_allowed(mask, token)) tokens.push_back(token);
    if (tokens.empty()) {
      ADD_FAILURE() << "dead end after " << out;
      return out;
    }
    int32_t token = tokens[random() % tokens.size()];
    if (count > patience) {
      // Whatever closes: a string if it may end, else one of these.
      std::string closing = "\"";
      if (!is_allowed(mask, '"')) closing = "x0]}";
      std::erase_if(closing, [&](char c) { return !is_allowed(mask, c); });
      if (!closing.empty()) token = closing[random() % closing.size()];
    }
    state = matcher.advance(state, token);
    if (state == GrammarMatcher::kDead) {
      ADD_FAILURE() << "the mask and advance() disagree after " << out;
      return out;
    }
    out += byte_tokens()->bytes(token);
  }
  ADD_FAILURE() << "no end: " << out.substr(0, 60);
  return out;
}

inline GrammarPtr schema_grammar(const std::string& text) {
  const Result<GrammarPtr> grammar = compile_schema_text(text);
  EXPECT_TRUE(grammar) << text << ": " << grammar.error().message;
  return grammar ? *grammar : nullptr;
}

}  // namespace foresail
