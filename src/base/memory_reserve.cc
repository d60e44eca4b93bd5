#include "base/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "base/check.h"

namespace foresail {
namespace {

struct Reserve {
  std::mutex mutex;
  size_t wanted_bytes = 0;  // 0: there is none
  void* block = nullptr;
  size_t block_bytes = 0;
  std::new_handler handler_before = nullptr;
  std::atomic<bool> whole{true};  // fill() has nothing to do
  std::atomic<uint64_t> draws{0};
} reserve;

thread_local uint64_t own_draws = 0;
thread_local uint64_t draws_seen = 0;

// Not from the heap, whose free memory is not the system's.
void* map(size_t bytes) {
  void* const block =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : block;
}

// The new-handler. Another thread may have just drawn what this one looks for: then it tries again.
void draw() {
  const std::lock_guard lock(reserve.mutex);
  const bool held = reserve.block != nullptr;
  if (!held && draws_seen == reserve.draws) throw std::bad_alloc();
  if (held) {
    munmap(std::exchange(reserve.block, nullptr), reserve.block_bytes);
    reserve.whole = false;
    ++reserve.draws;
  }
  draws_seen = reserve.draws;
  ++own_draws;
}

}  // namespace

MemoryReserve::MemoryReserve(size_t bytes) {
  const std::lock_guard lock(reserve.mutex);
  FORESAIL_CHECK(reserve.wanted_bytes == 0, "a second reserve of memory, {} bytes", bytes);
  reserve.block = map(bytes);
  if (reserve.block == nullptr) throw std::bad_alloc();
  reserve.wanted_bytes = reserve.block_bytes = bytes;
  reserve.whole = true;
  reserve.handler_before = std::set_new_handler(draw);
}

MemoryReserve::~MemoryReserve() {
  const std::lock_guard lock(reserve.mutex);
  std::set_new_handler(reserve.handler_before);
  if (reserve.block != nullptr) munmap(std::exchange(reserve.block, nullptr), reserve.block_bytes);
  reserve.wanted_bytes = 0;
  reserve.whole = true;
}

bool MemoryReserve::fill() noexcept {
  if (reserve.whole) return true;
  const std::lock_guard lock(reserve.mutex);
  const size_t wanted = reserve.wanted_bytes;
  size_t had = reserve.block == nullptr ? 0 : reserve.block_bytes;
  for (size_t bytes = wanted; bytes > had && bytes >= wanted / 16; bytes /= 2) {
    void* const block = map(bytes);
    if (block == nullptr) continue;
    if (had > 0) munmap(reserve.block, had);
    reserve.block = block;
    reserve.block_bytes = had = bytes;
  }
  reserve.whole = had == wanted;
  return had >= wanted / 4;
}

uint64_t MemoryReserve::draws() noexcept {
  return reserve.draws;
}

uint64_t MemoryReserve::draws_of_this_thread() noexcept {
  return own_draws;
}

}  // namespace foresail
