#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "base/json.h"
#include "base/thread_pool.h"
#include "base/utf8.h"

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

TEST(Utf8, DecodesAndReplaces) {
  EXPECT_TRUE(is_valid_utf8("aé一😀"));
  EXPECT_FALSE(is_valid_utf8("\xED\xA0\x80"));  // a surrogate
  EXPECT_FALSE(is_valid_utf8("\xC0\x80"));      // overlong
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x98z"), "a\xEF\xBF\xBDz");
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
