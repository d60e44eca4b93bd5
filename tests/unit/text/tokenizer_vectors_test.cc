// The committed vectors of PyPI `tokenizers` and `tiktoken` (scripts/compare_tokenizer.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "text/detokenizer.h"

namespace foresail {
namespace {

std::filesystem::path data_dir() {
  return std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/data/tokenizer";
}

Json read_list(const std::filesystem::path& path) {
  auto list = parse_json(read_text_file(path, 1 << 24));
  if (!list) throw std::runtime_error(list.error().message);
  return *std::move(list);
}

// [text, ids, ids without control tokens]; the texts are those of all tokenizers.
Json rows_of(const std::filesystem::path& dir) {
  const Json texts = read_list(data_dir() / "texts.json");
  Json rows = read_list(dir / "vectors.json");
  for (Json& row : rows) row[0] = texts.at(row[0].get<size_t>());
  return rows;
}

class TokenizerVectors : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerVectors, EncodeAsTheReferenceDoes) {
  const auto dir = data_dir() / GetParam();
  const auto tokenizer = Tokenizer::load(dir);
  const Json rows = rows_of(dir);
  ASSERT_GT(rows.size(), 100u);
  for (const Json& row : rows) {
    const std::string& text = row[0].get_ref<const std::string&>();
    const auto control = row[1].get<std::vector<int32_t>>();
    const auto plain = row.size() > 2 ? row[2].get<std::vector<int32_t>>() : control;
    ASSERT_EQ(tokenizer->encode(text, {.allow_control = true}), control) << json_text(row[0]);
    ASSERT_EQ(tokenizer->encode(text), plain) << json_text(row[0]);
    for (const int32_t id : plain) ASSERT_FALSE(tokenizer->is_control(id)) << json_text(row[0]);
    Detokenizer stream(*tokenizer, false);
    std::string streamed;
    for (const int32_t id : control) streamed += stream.push(id);
    ASSERT_EQ(streamed + stream.flush(), tokenizer->decode(control, false));
  }
}

TEST_P(TokenizerVectors, DecodeIsTheInverse) {
  const std::string name = GetParam();
  const bool changes_text = name == "qwen2-small" || name == "ling-small" || name == "gpt2-small" ||
                            name == "merged-small";
  if (changes_text) return;  // normalization, a prefix space, removed pieces
  const auto dir = data_dir() / name;
  const auto tokenizer = Tokenizer::load(dir);
  const Json rows = rows_of(dir);
  for (const Json& row : rows) {
    const std::string& text = row[0].get_ref<const std::string&>();
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text), false), text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerVectors,
                         testing::Values("deepseek-v3-small", "deepseek-v2-small", "llama3-small",
                                         "qwen2-small", "ling-small", "youtu-small", "tekken-small",
                                         "kimi-json-small", "kimi-small", "gpt2-small",
                                         "merged-small"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

// FORESAIL_DEEPSEEK_TOKENIZER names the folder of the real tokenizer, which is too large to ship.
TEST(DeepSeekTokenizer, HasTheKnownIdsAndEncodings) {
  const char* real = std::getenv("FORESAIL_DEEPSEEK_TOKENIZER");
  const auto tokenizer = Tokenizer::load(real ? real : (data_dir() / "deepseek-v3-small").string());
  if (real == nullptr) {
    EXPECT_TRUE(tokenizer->find_control("<｜User｜>"));
    return;
  }
  EXPECT_EQ(tokenizer->vocab_size(), 128815u);
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->find_control("<｜User｜>"), 128803);
  EXPECT_EQ(tokenizer->find_control("<｜tool▁sep｜>"), 128814);
  EXPECT_FALSE(tokenizer->is_special(128803));
  EXPECT_EQ(tokenizer->encode("Hello world, 你好 12345", {.add_bos = true}),
            (std::vector<int32_t>{0, 19923, 2058, 14, 223, 30594, 223, 6895, 1883}));
  EXPECT_EQ(tokenizer->encode("<｜User｜>", {.allow_control = true}), std::vector<int32_t>{128803});
  for (const int32_t id : tokenizer->encode("<｜User｜><｜begin▁of▁sentence｜>"))
    EXPECT_FALSE(tokenizer->is_control(id));
}

}  // namespace
}  // namespace foresail
