// The benches that run one batch of requests in process: `bench batch`, `bench ab`, `bench depth`.
#pragma once

#include "apps/model_flags.h"
#include "engine/batch_bench.h"

namespace foresail {

struct BatchBenchFlags {
  ModelFlags model;
  BatchBenchOptions bench;
  bool json = false;
};

void add_bench_batch_command(CLI::App& bench);
void add_bench_ab_command(CLI::App& bench);
void add_bench_depth_command(CLI::App& bench);

}  // namespace foresail
