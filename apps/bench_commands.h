// The commands under `foresail bench`.
#pragma once

#include "apps/command.h"

namespace foresail {

void add_bench_kernels(CLI::App& bench);
void add_bench_latency(CLI::App& bench);
void add_bench_depth(CLI::App& bench);
void add_bench_ab(CLI::App& bench);
void add_bench_serve(CLI::App& bench);

}  // namespace foresail
