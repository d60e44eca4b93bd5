#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"

namespace foresail {
namespace {
// A forward pass issues loops a few microseconds apart: spin that long before sleeping.
constexpr int kSpins = 20000;
}  // namespace

ThreadPool::ThreadPool(int thread_count) {
  FORESAIL_CHECK(thread_count >= 1, "thread_count {}", thread_count);
  for (int i = 1; i < thread_count; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t task_count, Call call, void* context) {
  if (task_count <= 0) return;
  if (workers_.empty() || task_count == 1) {
    for (int64_t task = 0; task < task_count; ++task) call(context, task, 0);
    return;
  }
  call_ = call;
  context_ = context;
  task_count_ = task_count;
  next_task_.store(0, std::memory_order_relaxed);
  generation_.fetch_add(1);
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  // Close the loop, then wait only for the workers that joined: one that the system has not
  // scheduled in time costs nothing. A worker joins before it looks whether the loop is open, so
  // after the wait none can still see this loop's fields.
  generation_.fetch_add(1);
  int spins = 0;
  while (joined_workers_.load() != 0) {
    _mm_pause();
    if (++spins > kSpins) std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= task_count_) return;
    call_(context_, task, thread);
  }
}

void ThreadPool::worker_loop(int thread) {
  uint64_t seen = 0;
  for (;;) {
    const auto nothing_new = [&] {
      const uint64_t now = generation_.load();
      return !stopping_ && (now == seen || now % 2 == 0);
    };
    for (int spins = 0; nothing_new() && spins < kSpins; ++spins) _mm_pause();
    if (nothing_new()) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return !nothing_new(); });
      sleepers_.fetch_sub(1);
    }
    if (stopping_) return;
    joined_workers_.fetch_add(1);
    const uint64_t now = generation_.load();
    if (now % 2 == 1) {
      seen = now;
      work(thread);
    }
    joined_workers_.fetch_sub(1);
  }
}

}  // namespace foresail
