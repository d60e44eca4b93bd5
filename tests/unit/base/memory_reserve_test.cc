#include "base/memory_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace foresail {
namespace {

constexpr size_t kReserveBytes = 8 << 20;
constexpr size_t kPieceBytes = 1000;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = false;  // a sanitizer's has no handler
#else
constexpr bool kOwnAllocator = true;
#endif

size_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmData:") {
      size_t kib = 0;
      status >> kib;
      return kib << 10;
    }
  return 0;
}

void allow(size_t bytes) {
  rlimit limit = {};
  getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = bytes;
  setrlimit(RLIMIT_DATA, &limit);
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  _exit(1);
}

// In a process of its own, since it takes all memory there is.
[[noreturn]] void run_out() {
  std::vector<std::unique_ptr<char[]>> pieces;
  pieces.reserve(100'000);
  const MemoryReserve reserve(kReserveBytes);
  const MemoryReserve::Watch watch;
  allow(data_bytes());
  // What is free in the heap, and then the reserve: some pieces more.
  while (!watch.drew()) pieces.emplace_back(new char[kPieceBytes]);
  require(MemoryReserve::draws() == 1, "one draw");
  // Little has been used of it, so half can be had again.
  require(MemoryReserve::fill(), "filled again in part");
  size_t after = 0;
  try {
    for (;; ++after) pieces.emplace_back(new char[kPieceBytes]);
  } catch (const std::bad_alloc&) {
  }
  require(MemoryReserve::draws() == 2, "two draws");
  require(after * kPieceBytes > kReserveBytes / 2 && after * kPieceBytes < 2 * kReserveBytes,
          "as much as the reserve and what was left");
  require(!MemoryReserve::fill(), "nothing to fill it with");
  // What is too large for it throws.
  try {
    pieces.emplace_back(new char[4 * kReserveBytes]);
    _exit(2);
  } catch (const std::bad_alloc&) {
  }
  allow(RLIM_INFINITY);
  require(MemoryReserve::fill(), "filled again");
  const MemoryReserve::Watch later;
  pieces.emplace_back(new char[4 * kReserveBytes]);
  require(!later.drew(), "nobody draws on it later");
  _exit(0);
}

TEST(MemoryReserveDeathTest, ServesWhatFailsUntilItIsUsedUp) {
  if (!kOwnAllocator) GTEST_SKIP() << "the sanitizer's allocator calls no handler";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(run_out(), testing::ExitedWithCode(0), "");
}

TEST(MemoryReserve, IsNotMissedWhereThereIsNone) {
  EXPECT_TRUE(MemoryReserve::fill());
  { const MemoryReserve reserve(kReserveBytes); }
  EXPECT_EQ(std::get_new_handler(), nullptr);
  EXPECT_TRUE(MemoryReserve::fill());
}

}  // namespace
}  // namespace foresail
