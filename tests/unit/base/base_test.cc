#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <string>

#include "base/json.h"
#include "base/thread_pool.h"
#include "base/utf8.h"
#include "colliding_keys.h"

namespace foresail {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t tasks : {0, 1, 2, 3, 100, 1000}) {
      std::vector<std::atomic<int>> hits(tasks);
      pool.parallel_for(tasks, [&](int64_t task, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        hits[task].fetch_add(1);
      });
      for (int64_t i = 0; i < tasks; ++i) EXPECT_EQ(hits[i].load(), 1);
    }
  }
}

TEST(ThreadPool, ManyShortLoopsInARow) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 20000; ++i) pool.parallel_for(4, [&](int64_t task, int) { sum += task; });
  EXPECT_EQ(sum.load(), 20000 * 6);
}

TEST(Json, RefusesWhatCostsOrConfuses) {
  EXPECT_TRUE(parse_json(R"({"a": [1, 2, {"b": "x"}]})").has_value());
  EXPECT_FALSE(parse_json("\xEF\xBB\xBF{}").has_value());
  EXPECT_FALSE(parse_json(R"({"a":1,"a":2})").has_value());
  EXPECT_FALSE(parse_json("{} x").has_value());
  EXPECT_FALSE(parse_json("").has_value());
  EXPECT_FALSE(parse_json("{\"a\":\"\xFF\"}").has_value());
  EXPECT_FALSE(parse_json(std::string(1000000, '[')).has_value());
  EXPECT_TRUE(parse_json(std::string(60, '[') + std::string(60, ']')).has_value());
  EXPECT_FALSE(parse_json("[1,2]", {.max_bytes = 3}).has_value());
}

std::string json_fault(std::string_view text) {
  const Result<Json> value = parse_json(text);
  const Result<OrderedJson> ordered = parse_ordered_json(text);
  if (value || ordered) return "parsed";
  EXPECT_EQ(value.error().message, ordered.error().message);
  return value.error().message;
}

TEST(Json, SaysWhereItDoesNotParse) {
  EXPECT_EQ(json_fault(""), "JSON is empty");
  EXPECT_EQ(json_fault(R"({"a": [1, 2)"), "JSON ends before its value is complete");
  EXPECT_EQ(json_fault("{\n  \"a\": 1,\n}"), "JSON does not parse at line 3, column 1, near \"}\"");
  EXPECT_EQ(json_fault("[1] [2]"), "JSON does not parse at line 1, column 5, near \"[2]\"");
  EXPECT_EQ(json_fault("{'a': 1}"), "JSON does not parse at line 1, column 2, near \"'a': 1}\"");
  EXPECT_EQ(json_fault(R"({"a": {"b": 1, "c": 2, "b": 3}})"), R"(JSON repeats the key "b")");
  EXPECT_EQ(json_fault(std::string(70, '[')), "JSON is nested deeper than 64 levels");
}

TEST(Json, OrderedKeepsOrderAndValues) {
  constexpr const char* kText =
      R"({"z":null,"a":[true,-1,18446744073709551615,1.5,"x",{"y":{}},[]],"m":{"k":"v"}})";
  EXPECT_EQ(parse_ordered_json(kText)->dump(), kText);
  EXPECT_EQ(*parse_json(kText), Json::parse(kText));
  EXPECT_EQ(*parse_json("7"), 7);
}

// Keys of one object were once compared with each other.
TEST(Json, OrderedObjectOfManyKeysIsLinear) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"" + std::to_string(i) + "\":0,";
  text.back() = '}';
  EXPECT_EQ(parse_ordered_json(text)->size(), 200'000u);
}

// Keys were once looked up by a hash that everybody knows: a megabyte took seconds, 32 took hours.
TEST(Json, KeysThatAreChosenToCollideCostNoMore) {
  std::string text = "{";
  for (const std::string& key : CollidingKeys::all()) text += "\"" + key + "\":0,";
  text.back() = '}';
  const std::clock_t start = std::clock();
  EXPECT_EQ(parse_ordered_json(text)->size(), 65'536u);
  EXPECT_EQ(parse_json(text)->size(), 65'536u);
  EXPECT_LT(std::clock() - start, 3 * CLOCKS_PER_SEC);
}

// A terminal takes C1 controls in UTF-8 for orders, and shows lines that turn their direction.
TEST(Json, LogLinesAreAscii) {
  EXPECT_EQ(ascii_json_text("a\x1b[2J\n\xC2\x9B\xE2\x80\xAE\xFF\"é"),
            R"("a\u001b[2J\n\u009b\u202e\ufffd\"\u00e9")");
}

TEST(Utf8, DecodesAndReplaces) {
  EXPECT_TRUE(is_valid_utf8("aé一😀"));
  EXPECT_FALSE(is_valid_utf8("\xED\xA0\x80"));  // a surrogate
  EXPECT_FALSE(is_valid_utf8("\xC0\x80"));      // overlong
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x98z"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(for_terminal("é\n\t\x1b]52;c;eA==\x07\r\x7f\xC2\x9B\xC2\xA0\xFF"),
            "é\n\t\uFFFD]52;c;eA==\uFFFD\uFFFD\uFFFD\uFFFD\u00A0\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xFF\xFE"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(incomplete_utf8_tail("a\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_tail("a\xE4"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("ab"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("é"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\xED\xA0"), 0u);  // can never become valid
  std::string round_trip;
  for (char32_t c : {U'a', U'é', U'一', U'\U0001F600'}) append_utf8(round_trip, c);
  EXPECT_EQ(round_trip, "aé一😀");
}

}  // namespace
}  // namespace foresail
