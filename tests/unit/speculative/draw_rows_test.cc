#include "speculative/draw_rows.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace foresail {
namespace {

TEST(DrawRows, EachOnceAndThoseAloneLastInOrder) {
  ThreadPool pool(3);
  for (ThreadPool* threads : {&pool, static_cast<ThreadPool*>(nullptr)})
    for (const int64_t count : {0, 1, 2, 3, 40}) {
      std::vector<std::atomic<int>> times(count);
      std::atomic<int64_t> together = 0;
      std::vector<int64_t> alone, expected;
      for (int64_t i = 0; i < count; i += 3) expected.push_back(i);
      draw_rows(
          threads, count, [](int64_t i) { return i % 3 == 0; },
          [&](int64_t i) {
            ++times[i];
            if (i % 3 != 0) {
              ++together;
              return;
            }
            EXPECT_EQ(together, count - std::ssize(expected));
            alone.push_back(i);
          });
      EXPECT_EQ(alone, expected);
      for (const std::atomic<int>& of_row : times) EXPECT_EQ(of_row, 1);
    }
}

TEST(DrawRows, WhatARowThrowsIsThrown) {
  ThreadPool pool(3);
  for (ThreadPool* threads : {&pool, static_cast<ThreadPool*>(nullptr)})
    EXPECT_THROW(draw_rows(
                     threads, 9, [](int64_t) { return false; },
                     [](int64_t i) {
                       if (i == 5) throw std::runtime_error("row 5");
                     }),
                 std::runtime_error);
}

}  // namespace
}  // namespace foresail
