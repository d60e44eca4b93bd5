#include <fmt/core.h>

#include <vector>

#include "apps/bench_commands.h"
#include "apps/flag_checks.h"
#include "apps/probe_line.h"
#include "apps/progress_line.h"
#include "apps/standard_error.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/kernel_bench.h"

namespace foresail {
namespace {

struct KernelFlags {
  KernelBenchOptions options;
  std::string filter, dtype = "bf16", clock = "wall";
  bool json = false;
};

void print_row(const KernelCase& kernel_case, const KernelTime& time, const Floors& floors,
               bool json) {
  const double bytes_per_s = kernel_case.bytes / time.fastest_s;
  const double operations_per_s = kernel_case.operations / time.fastest_s;
  // Faster than memory can be read: a share of it would say nothing.
  const bool from_cache = bytes_per_s > floors.bytes_per_s;
  if (json) {
    fmt::print(
        "{}\n",
        json_text(Json{{"op", kernel_case.op},
                       {"shape", kernel_case.shape},
                       {"fastest_us", time.fastest_s * 1e6},
                       {"median_us", time.median_s * 1e6},
                       {"runs", time.runs},
                       {"bytes", kernel_case.bytes},
                       {"operations", kernel_case.operations},
                       {"bytes_per_s", bytes_per_s},
                       {"operations_per_s", operations_per_s},
                       {"share_of_read_probe", bytes_per_s / floors.bytes_per_s},
                       {"from_cache", from_cache},
                       {"share_of_arithmetic_probe", operations_per_s / floors.operations_per_s}}));
  } else {
    const std::string share =
        from_cache ? "cache" : fmt::format("{:.0f} %", 100 * bytes_per_s / floors.bytes_per_s);
    fmt::print("{:<19}{:<34}{:>11.1f}{:>11.1f}{:>8.1f}{:>8}{:>9.1f}{:>6.0f} %\n", kernel_case.op,
               kernel_case.shape, time.fastest_s * 1e6, time.median_s * 1e6, bytes_per_s / 1e9,
               share, operations_per_s / 1e9, 100 * operations_per_s / floors.operations_per_s);
  }
}

void bench_kernels(KernelFlags& flags) {
  flags.options.dtype = flags.dtype == "f32" ? DType::kF32 : DType::kBF16;
  flags.options.processor_time = flags.clock == "cpu";
  std::vector<KernelCase> cases = kernel_cases(flags.options.dtype);
  std::erase_if(cases, [&](const KernelCase& kernel_case) {
    return (kernel_case.op + " " + kernel_case.shape).find(flags.filter) == std::string::npos;
  });
  if (cases.empty())
    throw_error(ErrorCode::kUsage,
                "--filter {} matches no row: without it the table names every row", flags.filter);
  KernelBench bench(flags.options);
  // Judged by what the machine could do before or after them, so printed when both are known.
  if (!flags.json) tell("timing {} operations, up to a second each\n", cases.size());
  const Floors before = bench.probe();
  std::vector<KernelTime> times;
  ProgressLine progress(!flags.json);
  for (const KernelCase& kernel_case : cases) {
    progress.show(fmt::format("{} of {}: {} {}", times.size() + 1, cases.size(), kernel_case.op,
                              kernel_case.shape));
    times.push_back(bench.time(kernel_case));
  }
  progress.clear();
  const Floors after = bench.probe(), fastest = fastest_of(before, after);
  if (!flags.json)
    fmt::print("{:<19}{:<34}{:>11}{:>11}{:>8}{:>8}{:>9}{:>8}\n", "op", "shape", "fastest us",
               "median us", "GB/s", "of read", "GFLOP/s", "of peak");
  for (size_t i = 0; i < cases.size(); ++i) print_row(cases[i], times[i], fastest, flags.json);
  print_probes({.threads = bench.threads(),
                .kernels = bench.kernels(),
                .clock = flags.clock,
                .before = before,
                .after = after},
               flags.json, true);
  if (!flags.json)
    fmt::print(
        "Rates and shares are of the fastest run; cache: faster than the read probe, since caches "
        "hold the operands.\n");
}

}  // namespace

void add_bench_kernels(Command& bench) {
  auto flags = std::make_shared<KernelFlags>();
  Command* command = bench.add_subcommand(
      "kernels", "Time every CPU operation in shapes of mla-mid; needs no model");
  command->add_option("--filter", flags->filter, "only rows whose op and shape contain this text");
  command->add_option("--threads", flags->options.threads, "threads; 0: all cores")
      ->capture_default_str()
      ->check(number_in(0, 1024));
  command->add_option("--dtype", flags->dtype, "bf16 or f32")
      ->capture_default_str()
      ->check(one_of({"bf16", "f32"}));
  command
      ->add_option("--cpu-isa", flags->options.isa,
                   "auto, or one of the sets that `foresail env` lists")
      ->capture_default_str();
  command
      ->add_option("--clock", flags->clock,
                   "wall, or cpu: processor time, for --threads 1 on a busy machine")
      ->capture_default_str()
      ->check(one_of({"wall", "cpu"}));
  command->add_flag("--json", flags->json, "print JSON lines");
  command->callback([flags] { bench_kernels(*flags); });
}

}  // namespace foresail
