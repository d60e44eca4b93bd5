// What the machine can do at most, measured: the figures every kernel is judged by.
// Thread rule: one caller; uses the pool's threads.
#pragma once

#include <cstdint>
#include <string>

#include "base/thread_pool.h"

namespace foresail {

struct ReadProbe {
  double bytes_per_s = 0.0;
  uint64_t buffer_bytes = 0;
};

// Best of `passes` plain reads of a buffer far larger than any cache (>= 1 GiB by default).
ReadProbe probe_read_bandwidth(ThreadPool& pool, int passes = 5,
                               uint64_t buffer_bytes = 1ull << 30);

// Best of some hundred short register-only loops on all threads, in operations per second (a
// multiply-add is two). bf16: vdpbf16ps where `isa` has it, otherwise as f32.
double probe_flops_per_s(ThreadPool& pool, const std::string& isa, bool bf16, int passes = 2000);

// What a time is judged by: bytes over the one, operations over the other.
struct Floors {
  double bytes_per_s = 0.0, operations_per_s = 0.0;
};
Floors probe_floors(ThreadPool& pool, const std::string& isa, bool bf16);
// Of probes before and after a run: what the machine can do is the faster of the two, for each.
Floors fastest_of(const Floors& before, const Floors& after);
// Whether they are more than 10 % apart.
bool probes_disagree(const Floors& before, const Floors& after);

}  // namespace foresail
