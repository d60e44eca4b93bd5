#include "bench/serve/load_run.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

namespace foresail {
namespace {

constexpr size_t kMostThreads = 4096;

// Seconds from the start, ascending.
std::vector<double> arrivals(size_t count, const LoadRunOptions& options) {
  std::vector<double> times(count);
  if (options.request_rate <= 0) return times;
  std::mt19937_64 engine(options.seed);
  std::gamma_distribution<double> gap(options.burstiness,
                                      1.0 / (options.request_rate * options.burstiness));
  double now = 0;
  for (size_t i = 1; i < count; ++i) times[i] = now += gap(engine);
  return times;
}

}  // namespace

std::vector<LoadResult> run_load(const LoadTarget& target, const std::vector<LoadPrompt>& prompts,
                                 const LoadRunOptions& options,
                                 const std::function<void(size_t)>& progress) {
  const std::vector<double> times = arrivals(prompts.size(), options);
  std::vector<LoadResult> results(prompts.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t done = 0;  // under the mutex
  const auto begin = LoadResult::Clock::now();
  const auto work = [&] {
    for (size_t i; (i = next++) < prompts.size();) {
      std::this_thread::sleep_until(begin + std::chrono::duration_cast<LoadResult::Clock::duration>(
                                                std::chrono::duration<double>(times[i])));
      results[i] = run_load_request(target, prompts[i]);
      const std::lock_guard lock(mutex);
      ++done;
      if (progress) progress(done);
    }
  };
  const size_t wanted =
      options.max_concurrency > 0 ? static_cast<size_t>(options.max_concurrency) : prompts.size();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min({wanted, prompts.size(), kMostThreads}); ++i)
    threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace foresail
