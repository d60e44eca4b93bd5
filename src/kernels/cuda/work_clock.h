// When the GPU works and when it waits for more: events around every stretch of kernels that is
// launched at once. Copies between stretches count as waiting. Recording an event costs both sides
// about a microsecond, so it is for benches.
// Owner: the CUDA set. Thread rule: one caller.
#pragma once

#include <cuda_runtime_api.h>

#include <array>

#include "kernels/device_counts.h"

namespace foresail {

class WorkClock {
 public:
  explicit WorkClock(cudaStream_t stream) : stream_(stream) {}
  ~WorkClock();
  WorkClock(const WorkClock&) = delete;
  WorkClock& operator=(const WorkClock&) = delete;

  // Forgets what it has seen.
  void start();
  void stop() { running_ = false; }
  // Around the launch of a stretch.
  void begin_stretch();
  void end_stretch();
  // Adds to `counts` the stretches that have ended since the last call.
  void move_to(DeviceCounts& counts);

 private:
  struct Stretch {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  Stretch& at(uint64_t number) { return stretches_[number % stretches_.size()]; }
  void read_ended();

  cudaStream_t stream_;
  bool running_ = false;
  // The latest ones; [read_, begun_) are still to be read, and the one before them has an end that
  // the next gap is measured from.
  std::array<Stretch, 256> stretches_;
  uint64_t first_ = 0, read_ = 0, begun_ = 0;
  bool open_ = false;
  int64_t stretch_count_ = 0, busy_ns_ = 0, idle_ns_ = 0;  // read and not moved
};

}  // namespace foresail
