#include "apps/probe_line.h"

#include <fmt/core.h>

#include "base/json.h"

namespace foresail {

void print_probes(const ProbedRun& run, bool json, bool has_shares) {
  const Floors &before = run.before, &after = run.after;
  const bool disagree = probes_disagree(before, after);
  if (json) {
    fmt::print("{}\n", json_text(Json{
                           {"kind", "probe"},
                           {"threads", run.threads},
                           {"kernels", run.kernels},
                           {"clock", run.clock},
                           {"read_bytes_per_s", {before.bytes_per_s, after.bytes_per_s}},
                           {"operations_per_s", {before.operations_per_s, after.operations_per_s}},
                           {"probes_disagree", disagree}}));
    return;
  }
  fmt::print(
      "probes, {} threads: read {:.1f} GB/s before and {:.1f} after, arithmetic {:.0f} and {:.0f} "
      "GFLOP/s{}; kernels {}\n",
      run.threads, before.bytes_per_s / 1e9, after.bytes_per_s / 1e9, before.operations_per_s / 1e9,
      after.operations_per_s / 1e9, has_shares ? "; shares are of the faster ones" : "",
      run.kernels);
  if (disagree)
    fmt::print(
        "The probes differ by more than 10 %: the machine's pace changed meanwhile, and {}.\n",
        has_shares ? "shares may be that much too low" : "times may be off by as much");
}

}  // namespace foresail
