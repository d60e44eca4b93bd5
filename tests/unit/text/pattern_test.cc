#include "text/pattern.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace foresail {
namespace {

Pattern compiled(std::string_view pattern) {
  const auto tree = parse_pattern(pattern);
  if (!tree) throw std::runtime_error(tree.error().message);
  return Pattern::compile(*tree).value();
}

// Matches in brackets, gaps bare.
std::string cut(std::string_view pattern, std::string_view text) {
  std::string out;
  compiled(pattern).split(text, [&](std::string_view piece, bool is_match) {
    out += is_match ? "[" + std::string(piece) + "]" : std::string(piece);
  });
  return out;
}

std::string refusal(std::string_view pattern) {
  const auto tree = parse_pattern(pattern);
  if (!tree) return tree.error().message;
  const auto whole = Pattern::compile(*tree);
  return whole ? "" : whole.error().message;
}

TEST(Pattern, PrefersTheFirstAlternativeThenTheLongestRepeat) {
  EXPECT_EQ(cut("a|ab", "abab"), "[a]b[a]b");
  EXPECT_EQ(cut("ab|a", "aab"), "[a][ab]");
  EXPECT_EQ(cut("a{1,3}", "aaaaa"), "[aaa][aa]");
  EXPECT_EQ(cut("a{2}", "aaaaa"), "[aa][aa]a");
  EXPECT_EQ(cut("a{2,}b?", "aaab a"), "[aaab] a");
  EXPECT_EQ(cut("a+?b?", "aab"), "[a][ab]");
  EXPECT_EQ(cut("(?:ab)+c|a", "ababc ab"), "[ababc] [a]b");
}

TEST(Pattern, LooksOneCharacterAhead) {
  EXPECT_EQ(cut(R"(\s+(?!\S)|\s+)", "   x  "), "[  ][ ]x[  ]");
  EXPECT_EQ(cut(R"(a(?=b))", "ab ac"), "[a]b ac");
  EXPECT_EQ(cut(R"(\s+$)", "  x  "), "  x[  ]");
}

TEST(Pattern, KnowsUnicodeClasses) {
  EXPECT_EQ(cut(R"(\p{L}+)", "aé北1ß"), "[aé北]1[ß]");
  EXPECT_EQ(cut(R"([\p{L}&&[^\p{Han}]]+)", "a北b"), "[a]北[b]");
  EXPECT_EQ(cut(R"(\p{N}{1,3})", "12345Ⅷ٣"), "[123][45Ⅷ][٣]");
  EXPECT_EQ(cut(R"([^\s\p{L}]+)", "a\u3000!\u0085?"), "a\u3000[!]\u0085[?]");
  EXPECT_EQ(cut(R"([a\-z\]]+)", "a-]b"), "[a-]]b");
  EXPECT_EQ(cut(R"([一-龥]+)", "x北京x"), "x[北京]x");
}

TEST(Pattern, FoldsCaseInGroups) {
  EXPECT_EQ(cut("(?i:'s|'ll)x", "'Sx 'lLx 'ſx 'SX"), "['Sx] ['lLx] ['ſx] 'SX");
}

TEST(Pattern, TakesPossessiveRepeatsWhereTheyChangeNothing) {
  EXPECT_EQ(cut(R"([^\p{L}]?+\p{L}+|[^\s\p{L}]++[\r\n]*)", " ab!!\n"), "[ ab][!!\n]");
  EXPECT_NE(refusal("a?+a"), "");
  EXPECT_NE(refusal("a*+b?a"), "");
  EXPECT_NE(refusal("(?:a++b?)c"), "");
}

TEST(Pattern, RefusesWhatItCannotMatch) {
  for (const char* pattern :
       {"(?<=a)b", "(?!ab)", "^a", "a**", "*", "(", ")", "[a", "a{3,2}", "a{1000}", "[z-a]", "\\q",
        "\\p{Klingon}", "(?>a)", "[[:alpha:]]", "\\", "\\x{110000}", "a{", "(?=a)*"})
    EXPECT_NE(refusal(pattern), "") << pattern;
  EXPECT_NE(refusal(std::string(100000, '(')), "");
  EXPECT_NE(refusal("((((((((((a{64}){64}){64}){64}){64}){64}){64}){64}){64}){64}"), "");
  EXPECT_NE(refusal("(?:.?){64}.{64}[^a].{64}x|(?:a.*){9}"), "");
}

TEST(Pattern, RefusesQuadraticWork) {
  const Pattern pattern = compiled("a*b|a");  // looks at every a for each a
  const std::string text(100000, 'a');
  EXPECT_THROW(pattern.split(text, [](std::string_view, bool) {}), Error);
}

// Exponents of an engine that backtracks; here the work is a small multiple of the text.
TEST(Pattern, WorkIsLinear) {
  const char* patterns[] = {
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"(\s+$)",
      R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  constexpr size_t kSize = 10'000'000;
  std::string mixed_lines;
  while (mixed_lines.size() < kSize) mixed_lines += "    \n  x\n";
  const std::string texts[] = {std::string(kSize, ' '),       std::string(kSize, ' ') + "x",
                               std::string(kSize, '\n'),      std::string(kSize, ' ') + "1",
                               std::string(kSize, '1'),       std::string(kSize, 'a'),
                               std::string(kSize, 'A') + "1", mixed_lines};
  for (const char* source : patterns) {
    const Pattern pattern = compiled(source);
    for (const std::string& text : texts) {
      size_t covered = 0;
      const uint64_t work =
          pattern.split(text, [&](std::string_view piece, bool) { covered += piece.size(); });
      EXPECT_EQ(covered, text.size());
      EXPECT_LE(work, 4 * text.size()) << source;
    }
  }
}

}  // namespace
}  // namespace foresail
