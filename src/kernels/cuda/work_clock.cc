#include "kernels/cuda/work_clock.h"

#include <utility>

#include "kernels/cuda/cuda_memory.h"

namespace foresail {
namespace {

int64_t ns_between(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0.0f;
  check_cuda(cudaEventElapsedTime(&ms, begin, end), "reading the time between events");
  return static_cast<int64_t>(1e6 * static_cast<double>(ms));
}

}  // namespace

WorkClock::~WorkClock() {
  for (const Stretch& stretch : stretches_) {
    if (stretch.begin != nullptr) cudaEventDestroy(stretch.begin);
    if (stretch.end != nullptr) cudaEventDestroy(stretch.end);
  }
}

void WorkClock::start() {
  for (Stretch& stretch : stretches_)
    for (cudaEvent_t* event : {&stretch.begin, &stretch.end})
      if (*event == nullptr) check_cuda(cudaEventCreate(event), "creating an event");
  first_ = read_ = begun_;
  open_ = false;
  stretch_count_ = busy_ns_ = idle_ns_ = 0;
  running_ = true;
}

void WorkClock::begin_stretch() {
  if (!running_) return;
  if (begun_ - read_ + 2 >= stretches_.size()) read_ended();
  // One whose pass failed stays open: its place is taken again.
  if (!open_) ++begun_;
  open_ = true;
  // More are under way than have a place: what would be overwritten is not counted.
  if (begun_ - read_ >= stretches_.size()) first_ = read_ = begun_ - 1;
  check_cuda(cudaEventRecord(at(begun_ - 1).begin, stream_), "recording an event");
}

void WorkClock::end_stretch() {
  if (!running_ || !open_) return;
  open_ = false;
  check_cuda(cudaEventRecord(at(begun_ - 1).end, stream_), "recording an event");
}

void WorkClock::read_ended() {
  const uint64_t ended = begun_ - (open_ ? 1 : 0);
  for (; read_ < ended; ++read_) {
    const Stretch& stretch = at(read_);
    const cudaError_t state = cudaEventQuery(stretch.end);
    if (state == cudaErrorNotReady) return;
    check_cuda(state, "work before this point");
    ++stretch_count_;
    busy_ns_ += ns_between(stretch.begin, stretch.end);
    if (read_ > first_) idle_ns_ += ns_between(at(read_ - 1).end, stretch.begin);
  }
}

void WorkClock::move_to(DeviceCounts& counts) {
  if (!running_) return;
  read_ended();
  counts.stretches += std::exchange(stretch_count_, 0);
  counts.busy_ns += std::exchange(busy_ns_, 0);
  counts.idle_ns += std::exchange(idle_ns_, 0);
}

}  // namespace foresail
