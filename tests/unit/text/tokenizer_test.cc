#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "text/byte_level.h"
#include "text/canonical_composition.h"
#include "text/chat_prompt.h"
#include "text/detokenizer.h"

namespace foresail {
namespace {

// A byte-level tokenizer of 256 bytes, one merge, and some added tokens.
Json small_json() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[byte_level_spelling(static_cast<unsigned char>(byte))] = byte;
  vocab["he"] = 256;
  const auto added = [](int id, const char* content, bool special) {
    return Json{{"id", id}, {"content", content}, {"special", special}};
  };
  return {
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array({"h e"})}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"added_tokens", Json::array({added(260, "<s>", true), added(261, "<｜User｜>", false),
                                    added(262, "<s>x", true)})}};
}

std::unique_ptr<Tokenizer> load(const Json& json, std::string_view config = {}) {
  return Tokenizer::from_json(json_text(json), config);
}

using Ids = std::vector<int32_t>;

TEST(Tokenizer, ReadsControlTokensOnlyWhereAllowed) {
  const auto tokenizer = load(small_json());
  EXPECT_EQ(tokenizer->encode("<s>he<｜User｜>", {.allow_control = true}), (Ids{260, 256, 261}));
  EXPECT_EQ(tokenizer->encode("<s>"), (Ids{'<', 's', '>'}));
  EXPECT_EQ(tokenizer->encode("<s>x<s>", {.allow_control = true}),
            (Ids{262, 260}));  // the longest wins
  for (const int32_t id : tokenizer->encode("<｜User｜>")) EXPECT_FALSE(tokenizer->is_control(id));
  EXPECT_EQ(tokenizer->find_control("<｜User｜>"), 261);
  EXPECT_EQ(tokenizer->find_control("he"), std::nullopt);
}

TEST(Tokenizer, PiecesKeepTextApartFromControl) {
  const auto tokenizer = load(small_json());
  const std::vector<PromptPiece> pieces{
      {.control_id = 260}, {.text = "<s>h"}, {.text = "e"}, {.control_id = 261}};
  EXPECT_EQ(tokenizer->encode_pieces(pieces), (Ids{260, '<', 's', '>', 256, 261}));
  EXPECT_EQ(tokenizer->encode_pieces({}), Ids{});
}

TEST(ChatPrompt, KeepsTheIdsThatSpellTheStartOfAConversation) {
  const auto tokenizer = load(small_json());
  const auto after = [&](const Ids& said, const std::vector<TemplatePiece>& pieces) {
    return encode_chat_after(said, pieces, *tokenizer);
  };
  const std::vector<TemplatePiece> pieces{
      {true, "<s>"}, {false, "<s>he"}, {true, "<｜User｜>"}, {false, "he"}};
  const Ids anew{260, '<', 's', '>', 256, 261, 256};
  EXPECT_EQ(after({}, pieces), anew);
  // "h" and "e" were generated as two, and the cut is within a piece or at its end.
  EXPECT_EQ(after({260, '<', 's', '>', 'h', 'e'}, pieces),
            (Ids{260, '<', 's', '>', 'h', 'e', 261, 256}));
  EXPECT_EQ(after({260, '<'}, pieces), (Ids{260, '<', 's', '>', 256, 261, 256}));
  EXPECT_EQ(after({260, '<', 's', '>', 'h', 'e', 261, 'h'}, pieces),
            (Ids{260, '<', 's', '>', 'h', 'e', 261, 'h', 'e'}));
  // Another text, or a longer one.
  EXPECT_EQ(after({260, 'h', 'e'}, pieces), anew);
  EXPECT_EQ(after({260, '<', 's', '>', 'h', 'e', 261, 'h', 'e', 'e'}, pieces), anew);
}

TEST(ChatPrompt, ABeginTokenOfTheTokenizersOwnIsKeptOnce) {
  const auto tokenizer = load(small_json(), R"({"add_bos_token": true, "bos_token": "<s>"})");
  const std::vector<TemplatePiece> pieces{{false, "hehe"}};
  EXPECT_EQ(encode_chat_after(Ids{260, 'h', 'e'}, pieces, *tokenizer), (Ids{260, 'h', 'e', 256}));
  EXPECT_EQ(encode_chat_after(Ids{260}, pieces, *tokenizer), (Ids{260, 256, 256}));
}

TEST(Tokenizer, MergingNeverSpellsAControlToken) {
  Json json = small_json();
  json["model"]["vocab"]["<s"] = 257;
  json["model"]["vocab"]["<s>"] = 260;
  json["model"]["ignore_merges"] = true;
  json["model"]["merges"] = Json::array({"< s", "<s >"});
  EXPECT_EQ(load(json)->encode("<s>"), (Ids{257, '>'}));
}

TEST(Tokenizer, AddsBosAsTheFilesSay) {
  Json json = small_json();
  EXPECT_FALSE(load(json)->adds_bos());
  EXPECT_EQ(
      load(json, R"({"bos_token": "<s>", "add_bos_token": true})")->encode("h", {.add_bos = true}),
      (Ids{260, 'h'}));
  EXPECT_EQ(load(json, R"({"bos_token": {"content": "<s>"}, "add_bos_token": true})")->encode("h"),
            Ids{'h'});
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  EXPECT_EQ(load(json)->encode("h", {.add_bos = true}), (Ids{260, 'h'}));
  EXPECT_EQ(load(json, R"({"add_bos_token": false})")->encode("h", {.add_bos = true}), Ids{'h'});
  EXPECT_THROW(load(json, R"({"add_bos_token": true})"), Error);
  EXPECT_THROW(load(json, R"({"bos_token": "<nobody>"})"), Error);
}

TEST(Tokenizer, ReplacesInvalidUtf8) {
  const auto tokenizer = load(small_json());
  EXPECT_EQ(tokenizer->encode("h\xFFi\xE2\x82"), tokenizer->encode("h\uFFFDi\uFFFD"));
  EXPECT_EQ(tokenizer->decode(Ids{'a', 0xE2, 0x82, 'b'}, false), "a\uFFFDb");
}

TEST(Tokenizer, DecodesNamelessAndForeignIdsToNothing) {
  const auto tokenizer = load(small_json());
  EXPECT_EQ(tokenizer->vocab_size(), 263u);
  EXPECT_EQ(tokenizer->decode(Ids{-1, 'a', 258, 100000, 260, 261}, false), "a<s><｜User｜>");
  EXPECT_EQ(tokenizer->decode(Ids{'a', 260, 261}, true), "a<｜User｜>");
}

TEST(Detokenizer, HoldsBackBrokenCharacters) {
  const auto tokenizer = load(small_json());
  Detokenizer stream(*tokenizer, false);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\U0001F600");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('x'), "\uFFFDx");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Detokenizer, StreamsWhatDecodeGives) {
  const auto tokenizer = load(small_json());
  std::mt19937 random(3);
  const Ids interesting{'a',  0x80, 0xBF, 0xC2, 0xE0, 0xA0, 0xED, 0x9F, 0xE2,
                        0x82, 0xAC, 0xF0, 0x90, 0xF4, 0x8F, 0xFF, 256,  260};
  for (int repeat = 0; repeat < 20000; ++repeat) {
    Ids ids;
    for (size_t i = random() % 12; i > 0; --i)
      ids.push_back(interesting[random() % interesting.size()]);
    Detokenizer stream(*tokenizer, true);
    std::string text;
    for (const int32_t id : ids) text += stream.push(id);
    ASSERT_EQ(text + stream.flush(), tokenizer->decode(ids, true));
  }
}

TEST(Tokenizer, EncodesTenMegabytesOfAnything) {
  const auto dir = std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/data/tokenizer";
  const auto tokenizer = Tokenizer::load(dir / "deepseek-v3-small");
  for (const char* unit : {" ", "\n", "7", "a", "北", " \n"}) {
    std::string text;
    while (text.size() < 10'000'000) text += unit;
    const Ids ids = tokenizer->encode(text, {.allow_control = true});
    EXPECT_LE(ids.size(), text.size());
    EXPECT_TRUE(tokenizer->decode(ids, false) == text) << "unit " << unit;
  }
}

TEST(CanonicalComposition, ComposesOrdersAndBlocks) {
  EXPECT_EQ(canonically_composed("e\u0301 \u212B"), "é \u00C5");
  EXPECT_EQ(canonically_composed("a\u0301\u0323"), "\u1EA1\u0301");
  EXPECT_EQ(canonically_composed("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(canonically_composed("\u0958"), "\u0915\u093C");  // excluded from composition
  std::string marks = "a";
  for (int i = 0; i < 500'000; ++i) marks += i % 2 ? "\u0316" : "\u0301";
  EXPECT_EQ(canonically_composed(marks).size(), marks.size() - 1);
}

// Hostile files: each is one clear line, and costs little.
struct Hostile {
  const char* name;
  std::function<void(Json&)> spoil;
  const char* message;
};

TEST(TokenizerFile, RefusesHostileJson) {
  const Hostile cases[] = {
      {"model missing", [](Json& j) { j.erase("model"); }, "tokenizer.json: model: is missing"},
      {"model a list", [](Json& j) { j["model"] = Json::array(); }, "model: must be an object"},
      {"model kind", [](Json& j) { j["model"]["type"] = "Unigram"; },
       "unsupported model \"Unigram\""},
      {"type a number", [](Json& j) { j["model"]["type"] = 1; }, "model.type: must be a string"},
      {"byte fallback", [](Json& j) { j["model"]["byte_fallback"] = true; },
       "byte fallback is not supported"},
      {"prefix", [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; },
       "is not supported"},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, "dropout"},
      {"vocab a list", [](Json& j) { j["model"]["vocab"] = Json::array({1}); },
       "model.vocab: must be an object"},
      {"vocab empty", [](Json& j) { j["model"]["vocab"] = Json::object(); }, "is empty"},
      {"id a string", [](Json& j) { j["model"]["vocab"]["a"] = "x"; }, "must be an integer"},
      {"id negative", [](Json& j) { j["model"]["vocab"]["zz"] = -1; }, "token id -1 is outside"},
      {"id huge", [](Json& j) { j["model"]["vocab"]["zz"] = 1ull << 40; }, "is outside"},
      {"id beyond int64", [](Json& j) { j["model"]["vocab"]["zz"] = ~0ull; }, "is outside"},
      {"id twice", [](Json& j) { j["model"]["vocab"]["zz"] = 5; }, "has two tokens"},
      {"byte missing", [](Json& j) { j["model"]["vocab"].erase("a"); },
       "no token for the byte 0x61"},
      {"merges missing", [](Json& j) { j["model"].erase("merges"); }, "model.merges: is missing"},
      {"merge unknown", [](Json& j) { j["model"]["merges"] = {"h zz"}; },
       "\"zz\" is not in the vocabulary"},
      {"merge result", [](Json& j) { j["model"]["merges"] = {"h h"}; },
       "\"hh\" is not in the vocabulary"},
      {"merge shape", [](Json& j) { j["model"]["merges"] = {"he"}; }, "two tokens with a space"},
      {"merge of three",
       [](Json& j) {
         j["model"]["merges"] = Json::array({{"h", "e", "x"}});
       },
       "a pair of strings"},
      {"merge a number", [](Json& j) { j["model"]["merges"] = {3}; }, "a pair of strings"},
      {"added a number", [](Json& j) { j["added_tokens"] = {3}; }, "must be an object"},
      {"added no id", [](Json& j) { j["added_tokens"][0].erase("id"); }, "id: is missing"},
      {"added id real", [](Json& j) { j["added_tokens"][0]["id"] = 1.5; }, "must be an integer"},
      {"added id huge", [](Json& j) { j["added_tokens"][0]["id"] = ~0ull; }, "is too large"},
      {"added id taken", [](Json& j) { j["added_tokens"][0]["id"] = 7; }, "is taken"},
      {"added twice", [](Json& j) { j["added_tokens"][1] = j["added_tokens"][0]; },
       "is listed twice"},
      {"added flag", [](Json& j) { j["added_tokens"][0]["lstrip"] = "no"; },
       "must be true or false"},
      {"added disagrees", [](Json& j) { j["added_tokens"][0]["content"] = "he"; },
       "in the vocabulary"},
      {"added long", [](Json& j) { j["added_tokens"][0]["content"] = std::string(5000, 'x'); },
       "is longer than"},
      {"pre-tokenizer",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       "unsupported pre-tokenizer \"Metaspace\""},
      {"no byte level", [](Json& j) { j["pre_tokenizer"] = nullptr; }, "no ByteLevel step"},
      {"regex",
       [](Json& j) {
         j["pre_tokenizer"] = {
             {"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "(?<=a)b"}}}};
       },
       "unsupported pattern: a group of an unknown kind"},
      {"behavior",
       [](Json& j) {
         j["pre_tokenizer"] = {
             {"type", "Split"}, {"behavior", "Odd"}, {"pattern", {{"Regex", "a"}}}};
       },
       "behavior \"Odd\""},
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "Prepend"}};
       },
       "unsupported normalizer \"Prepend\""},
      {"decoder",
       [](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       "unsupported decoder"},
      {"post-processor",
       [](Json& j) {
         j["post_processor"] = {{"type", "Odd\nname"}};
       },
       "\"Odd?name\""},
  };
  for (const Hostile& hostile : cases) {
    Json json = small_json();
    hostile.spoil(json);
    try {
      load(json);
      ADD_FAILURE() << hostile.name << " was accepted";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(hostile.message), message.npos) << hostile.name << ": " << message;
      EXPECT_TRUE(message.starts_with("tokenizer.json: ")) << message;
      EXPECT_EQ(message.find('\n'), message.npos) << message;
      EXPECT_EQ(error.code(), ErrorCode::kModel);
    }
  }
}

TEST(TokenizerFile, RefusesTextThatIsNoTokenizer) {
  const std::string deep(100000, '[');
  for (const std::string& text :
       {std::string(), std::string("nonsense"), deep, std::string("[]"), std::string("3"),
        std::string("{\"model\": "), std::string("\xFF\xFE")})
    EXPECT_THROW(Tokenizer::from_json(text, {}), Error);
  EXPECT_THROW(load(small_json(), "[]"), Error);
  EXPECT_THROW(load(small_json(), R"({"add_bos_token": "yes"})"), Error);
  EXPECT_THROW(load(small_json(), R"({"added_tokens_decoder": {"x": {}}})"), Error);
  EXPECT_THROW(Tokenizer::load("/nonexistent"), Error);
}

// A random place of the file gets a random value: refused with Error, or it works.
TEST(TokenizerFile, SurvivesRandomDamage) {
  std::mt19937 random(11);
  const Json values[] = {nullptr,
                         true,
                         -1,
                         3,
                         1ull << 63,
                         0.5,
                         "",
                         "h",
                         "Sequence",
                         "[^a]+",
                         Json::array(),
                         Json::object(),
                         Json::array({Json::object()}),
                         {{"type", "Sequence"}, {"normalizers", Json::array()}}};
  for (int repeat = 0; repeat < 600; ++repeat) {
    Json json = small_json();
    json["normalizer"] = {{"type", "NFC"}};
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", R"(\p{L}+)"}}}},
          json["pre_tokenizer"]}}};
    Json* place = &json;
    while (place->is_structured() && !place->empty() && (place == &json || random() % 4 != 0)) {
      auto child = place->begin();
      std::advance(child, random() % place->size());
      place = &*child;
    }
    *place = values[random() % std::size(values)];
    try {
      const auto tokenizer = load(json);
      tokenizer->decode(
          tokenizer->encode("he <s> \xFF北<｜User｜>", {.add_bos = true, .allow_control = true}),
          true);
    } catch (const Error&) {
    }
  }
}

TEST(TokenizerFile, RefusesHostileTiktokenModels) {
  for (const char* text : {"", "YQ==", "YQ== x", "Y Q== 1", "YQ== -1", "YQ== 99999999999",
                           "YQ== 1\nYg== 1", "YQ== 1\nYQ== 2", "YQ== 1", "=== 1", "Y=== 1", " 1"})
    EXPECT_THROW(Tokenizer::from_tiktoken(text, {}), Error) << text;
}

}  // namespace
}  // namespace foresail
