// The commands under `foresail bench`.
#pragma once

#include "apps/command.h"

namespace foresail {

void add_bench_kernels(Command& bench);
void add_bench_latency(Command& bench);
void add_bench_depth(Command& bench);
void add_bench_ab(Command& bench);
void add_bench_serve(Command& bench);

}  // namespace foresail
