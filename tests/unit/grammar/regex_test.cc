// Regular expressions as grammars, against std::regex where that knows them.
#include <regex>

#include "base/utf8.h"
#include "unit/grammar/grammar_tools.h"

namespace foresail {
namespace {

TEST(Regex, AgreesWithStdRegex) {
  const char* const patterns[] = {
      "a",      "a*b+c?", "(a|b)*c", "(?:ab|a)(c|bc)", "[a-c]{2,3}",    "a{2}",
      "a{1,}b", "[^a]b",  ".c",      "(a*)*b",         "(a|)b",         "(a?b?){2}c",
      "()a",    "a|b|",   "\\w\\d",  "[\\d_-]c",       "(ab*?){1,2}?c", "^ab$",
      "^a|b$",  "[]a",

      "*a",     "(a",     "a)",      "[b-a]",          "a{2,1}"};
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < 5; ++i)
    for (const char c : std::string_view("abc1_-")) texts.push_back(texts[i] + c);
  for (const std::string pattern : patterns) {
    const auto grammar = compile_regex(pattern);
    bool known = true;
    try {
      const std::regex regex(pattern);
      if (!grammar) {
        EXPECT_EQ(pattern, "[]a") << grammar.error().message;  // matches nothing there
        continue;
      }
      GrammarMatcher matcher(*grammar, byte_tokens());
      for (const std::string& text : texts)
        ASSERT_EQ(matches(matcher, text), std::regex_match(text, regex)) << pattern << " " << text;
    } catch (const std::regex_error&) {
      known = false;
    }
    if (!known) {
      EXPECT_FALSE(grammar) << pattern;
    }
  }
}

TEST(Regex, CharactersAreUtf8) {
  const auto check = [](const char* pattern, std::vector<std::string> in,
                        std::vector<std::string> out) {
    const auto grammar = compile_regex(pattern);
    ASSERT_TRUE(grammar) << pattern << grammar.error().message;
    GrammarMatcher matcher(*grammar, byte_tokens());
    for (const std::string& text : in) EXPECT_TRUE(matches(matcher, text)) << pattern << text;
    for (const std::string& text : out) EXPECT_FALSE(matches(matcher, text)) << pattern << text;
  };
  check("[ä-ü]", {"ä", "ö", "ü"}, {"a", "ý", "\xC3"});
  check("[^a]", {"b", "é", "世", "\xF0\x9F\x98\x8A"},
        {"a", "", "\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80"});
  check("\\u00e9\\x41\\ud83d\\ude0a", {"éA\xF0\x9F\x98\x8A"}, {"eA"});
  check("[\\u0800-\\uFFFF]", {"\xE0\xA0\x80", "\xEF\xBF\xBF"}, {"\xDF\xBF", "\xF0\x90\x80\x80"});
  // Output must keep to every dialect's idea of a space, whichever way a class is told.
  check("\\s|x[\\s]", {" ", "\t", "x "}, {"\u2000", "x\u2000", "a"});
  check("[^\\s]", {"a", "é"}, {" ", "\t", "\u2000", "\u3000"});
  check("[^\\S]", {" ", "\t"}, {"a", "\u2000"});
  check("a{,2}|b{x}", {"a{,2}", "b{x}"}, {"aa"});
  check("(?<year>\\d{4})", {"2026"}, {"20"});
}

// Every code point on its own: the byte ranges are exact.
TEST(Regex, EveryCodePoint) {
  GrammarMatcher matcher(*compile_regex("[A-\\u0801\\u0fff-\\ufffe]|\\ud800\\udc01"),
                         byte_tokens());
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const bool in = (c >= 0x41 && c <= 0x801) || (c >= 0xFFF && c <= 0xFFFE) || c == 0x10001;
    ASSERT_EQ(matches(matcher, text), in) << c;
  }
}

TEST(Regex, RefusesByName) {
  for (const char* pattern :
       {"(?=a)",     "(?!a)", "(?<=a)", "(?<!a)", "(?i)a", "\\1",         "\\ba",
        "\\p{L}",    "a++",   "a**",    "a$b",    "(^a)b", "[[:alpha:]]", "\\ud800",
        "[^\\s\\S]", "\\xZZ", "[",      "[a",     "\\",    "a{1000001}",  "\xFF"})
    EXPECT_FALSE(compile_regex(pattern)) << pattern;
  EXPECT_FALSE(compile_regex(std::string(60'000, '(')));
  EXPECT_FALSE(compile_regex(std::string(70'000, 'a')));
  EXPECT_FALSE(compile_regex("a{1,1000000}"));
  EXPECT_FALSE(compile_regex("(a{99999}b){1,99999}c{99999}"));
  std::string nested = "a";
  for (int i = 0; i < 32; ++i) nested = "(" + nested + ")*";
  EXPECT_TRUE(compile_regex(nested));
}

// Masks are what advance() says, control tokens included.
TEST(GrammarMatcher, MasksAgreeWithSteps) {
  const auto grammar = compile_grammar([](GrammarBuilder& builder, int32_t from) {
    // Anything but </control>, then it, then "name" or "nab".
    const GrammarBuilder::Rule free = builder.rule();
    builder.symbols(free.start, 0, control_symbol(256), free.end);
    from = builder.repeat(from, free, 0, -1);
    from = builder.symbol(from, control_symbol(257), control_symbol(257));
    return builder.one_of(from, {"name", "nab"});
  });
  GrammarMatcher matcher(*grammar, byte_tokens());
  int32_t state = matcher.start();
  for (const int32_t token : {int32_t{'x'}, 256, 257, int32_t{'n'}}) {
    const std::vector<uint64_t> mask(matcher.allowed(state).begin(), matcher.allowed(state).end());
    for (int32_t other = 0; other < 300; ++other)
      EXPECT_EQ(is_allowed(mask, other), matcher.advance(state, other) != GrammarMatcher::kDead);
    EXPECT_FALSE(matcher.can_end(state));
    state = matcher.advance(state, token);
  }
  state = matcher.advance(state, 'a');
  state = matcher.advance(state, 'b');
  EXPECT_TRUE(matcher.must_end(state));
  EXPECT_EQ(matcher.advance(state, 256), GrammarMatcher::kDead);
}

}  // namespace
}  // namespace foresail
