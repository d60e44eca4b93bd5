// A fixed set of threads for data-parallel loops. One loop at a time; the caller takes part.
// Thread rule: parallel_for is called from one thread at a time and never from inside a loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace foresail {

class ThreadPool {
 public:
  explicit ThreadPool(int thread_count);  // including the caller; >= 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for task = 0..task_count-1, each once, in no promised order;
  // thread is in [0, thread_count). Returns when all are done. body must not throw.
  template <typename Body>
  void parallel_for(int64_t task_count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        task_count,
        [](void* context, int64_t task, int thread) {
          (*static_cast<Plain*>(context))(task, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, int64_t task, int thread);
  void run(int64_t task_count, Call call, void* context);
  void work(int thread);
  void worker_loop(int thread);

  std::vector<std::thread> workers_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  int64_t task_count_ = 0;
  std::atomic<int64_t> next_task_{0};
  std::atomic<uint64_t> generation_{0};  // odd while a loop is open to join
  std::atomic<int> joined_workers_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace foresail
