// Sends requests at their times, at most so many at once. Owner: the bench command or a test.
// Thread rule: the caller waits; requests run on threads of their own.
#pragma once

#include <functional>
#include <vector>

#include "bench/serve/load_request.h"

namespace foresail {

struct LoadRunOptions {
  double request_rate = 0;  // a second; 0: all at once
  // Of the gaps between arrivals, a gamma distribution: 1 is a Poisson process, less is burstier.
  double burstiness = 1.0;
  int max_concurrency = 0;  // 0: no limit
  uint64_t seed = 0;
};

// [prompt]. `progress` is told of every request that ended, by one thread at a time.
std::vector<LoadResult> run_load(const LoadTarget& target, const std::vector<LoadPrompt>& prompts,
                                 const LoadRunOptions& options,
                                 const std::function<void(size_t done)>& progress = {});

}  // namespace foresail
