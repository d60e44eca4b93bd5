// Times one operation of the CPU kernel set beside what the machine can do.
// Thread rule: one caller; the work is spread over the bench's own pool.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "bench/kernel_cases.h"
#include "kernels/cpu/cpu_probe.h"

namespace foresail {

struct KernelBenchOptions {
  DType dtype = DType::kBF16;
  std::string isa = "auto";
  int threads = 0;  // 0: all cores
  // Processor time of the process instead of wall time: with one thread, other processes on the
  // machine do not show.
  bool processor_time = false;
};

// Seconds of one call. On a shared machine the fastest run is the undisturbed one.
struct KernelTime {
  double median_s = 0.0, fastest_s = 0.0;
  int runs = 0;
};

class KernelBench {
 public:
  // Throws Error{kUsage} for an instruction set that the machine lacks.
  explicit KernelBench(const KernelBenchOptions& options);
  std::string_view kernels() const { return set_->name(); }
  int threads() const { return pool_.thread_count(); }
  Floors probe();
  KernelTime time(const KernelCase& kernel_case);

 private:
  KernelBenchOptions options_;
  ThreadPool pool_;
  std::unique_ptr<KernelSet> set_;
};

}  // namespace foresail
