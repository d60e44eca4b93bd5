// The last line of a bench that judges times by probes of the machine before and after them.
#pragma once

#include <string_view>

#include "kernels/cpu/cpu_probe.h"

namespace foresail {

struct ProbedRun {
  int threads = 0;
  std::string_view kernels, clock = "wall";
  Floors before, after;
};

// Both probes, what the shares are of where the bench has any, and whether the probes are so far
// apart that its figures say little.
void print_probes(const ProbedRun& run, bool json, bool has_shares);

}  // namespace foresail
