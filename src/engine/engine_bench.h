// The batch of BatchBench through the whole engine: scheduler, commit, text and streams included.
// What it costs the host and how long a GPU waits for it.
#pragma once

#include "engine/batch_bench.h"
#include "foresail/output.h"

namespace foresail {

struct EngineBenchResult {
  int64_t steps = 0;  // those that only decoded
  int64_t launched_ahead = 0;
  double wall_s = 0.0;
  double host_s = 0.0;  // of wall_s what was no waiting for a GPU
  DeviceCounts device;  // with the GPU's work timed
};

// All requests together, from the step after the last of them has its first token until one ends.
// The model is at rest. `launch_ahead` as in EngineOptions.
EngineBenchResult bench_engine(LoadedModel& model, const BatchBenchOptions& options);

}  // namespace foresail
