#include "kernels/cpu/cpu_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "kernels/cpu/isa_select.h"
#include "tensor/buffer.h"

namespace foresail {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

ReadProbe probe_read_bandwidth(ThreadPool& pool, int passes, uint64_t buffer_bytes) {
  constexpr int64_t kChunk = 1 << 20;  // a task: long against its start, short against the whole
  const IsaOps& isa = select_isa("auto");
  Buffer buffer(buffer_bytes);
  const int64_t chunks = static_cast<int64_t>(buffer_bytes) / kChunk;
  // Written once, so that every page is real memory and not the shared zero page.
  pool.parallel_for(chunks, [&](int64_t i, int) {
    std::fill_n(buffer.data() + i * kChunk, kChunk, std::byte{0});
  });
  // Timed in windows larger than a last-level cache: on a busy machine the best window is the
  // undisturbed one. The rest of the buffer drives a window out before its turn comes again.
  constexpr int64_t kWindow = 64;  // chunks
  double best = 0.0;
  std::atomic<int> odd{0};
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t from = 0; from + kWindow <= chunks; from += kWindow) {
      const double start = now_s();
      pool.parallel_for(kWindow, [&](int64_t i, int) {
        if (isa.read_stream(buffer.data() + (from + i) * kChunk, kChunk) != 0.0f) odd.fetch_add(1);
      });
      best = std::max(best, static_cast<double>(kWindow * kChunk) / (now_s() - start));
    }
  return {odd.load() == 0 ? best : 0.0, buffer_bytes};
}

double probe_flops_per_s(ThreadPool& pool, const std::string& isa_name, bool bf16, int passes) {
  const IsaOps& isa = select_isa(isa_name);
  constexpr int64_t kSteps = 4000;  // some 20 us a task: short enough to run undisturbed
  double best = 0.0;
  std::atomic<int64_t> flops{0};
  for (int pass = 0; pass < passes; ++pass) {
    flops = 0;
    const double start = now_s();
    pool.parallel_for(2 * pool.thread_count(),
                      [&](int64_t, int) { flops += isa.peak_loop(bf16, kSteps); });
    best = std::max(best, static_cast<double>(flops.load()) / (now_s() - start));
  }
  return best;
}

Floors fastest_of(const Floors& before, const Floors& after) {
  return {std::max(before.bytes_per_s, after.bytes_per_s),
          std::max(before.operations_per_s, after.operations_per_s)};
}

bool probes_disagree(const Floors& before, const Floors& after) {
  const auto far = [](double one, double other) {
    return std::max(one, other) > 1.1 * std::min(one, other);
  };
  return far(before.bytes_per_s, after.bytes_per_s) ||
         far(before.operations_per_s, after.operations_per_s);
}

Floors probe_floors(ThreadPool& pool, const std::string& isa, bool bf16) {
  return {probe_read_bandwidth(pool).bytes_per_s, probe_flops_per_s(pool, isa, bf16)};
}

}  // namespace foresail
