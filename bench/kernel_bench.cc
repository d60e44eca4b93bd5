#include "bench/kernel_bench.h"

#include <time.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"

namespace foresail {
namespace {

constexpr double kTimePerCase_s = 0.3;
constexpr size_t kFewestRuns = 5, kMostRuns = 400;

double now_s(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

KernelBench::KernelBench(const KernelBenchOptions& options)
    : options_(options),
      pool_(options.threads > 0
                ? options.threads
                : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      set_(create_cpu_kernels({options.dtype, options.isa, &pool_})) {}

Floors KernelBench::probe() {
  return probe_floors(pool_, options_.isa, options_.dtype == DType::kBF16);
}

KernelTime KernelBench::time(const KernelCase& kernel_case) {
  const clockid_t clock = options_.processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  const std::function<void()> body = kernel_case.prepare(*set_);
  body();
  std::vector<double> times;
  for (double total = 0.0;
       times.size() < kFewestRuns || (total < kTimePerCase_s && times.size() < kMostRuns);) {
    const double start = now_s(clock);
    body();
    times.push_back(now_s(clock) - start);
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  return {.median_s = times[times.size() / 2] / kernel_case.calls,
          .fastest_s = times[0] / kernel_case.calls,
          .runs = static_cast<int>(times.size())};
}

}  // namespace foresail
