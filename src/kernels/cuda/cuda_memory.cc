#include "kernels/cuda/cuda_memory.h"

#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tensor/buffer.h"

namespace foresail {
namespace {

cudaStream_t create_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  return stream;
}

// Counts a wait of the host and its time.
class CountedWait {
 public:
  explicit CountedWait(DeviceCounts& counts) : counts_(counts) { ++counts_.waits; }
  ~CountedWait() {
    counts_.wait_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  DeviceCounts& counts_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

void check_cuda(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return;
  throw_error(ErrorCode::kDevice, "CUDA: {} failed: {}", what, cudaGetErrorString(error));
}

std::byte* PinnedMemory::allocate(size_t size_bytes) {
  void* data = nullptr;
  if (const cudaError_t error = cudaMallocHost(&data, size_bytes); error != cudaSuccess)
    throw_error(ErrorCode::kDevice, "CUDA: {:.2f} MiB of pinned host memory: {}",
                static_cast<double>(size_bytes) / (1 << 20), cudaGetErrorString(error));
  std::memset(data, 0, size_bytes);
  return static_cast<std::byte*>(data);
}

void PinnedMemory::release(std::byte* data, size_t) noexcept {
  cudaFreeHost(data);
}

void PinnedMemory::upload(void* to, const void* from, size_t size_bytes) {
  std::memcpy(to, from, size_bytes);
}

void PinnedMemory::download(void* to, const void* from, size_t size_bytes) {
  std::memcpy(to, from, size_bytes);
}

void PinnedMemory::zero(void* data, size_t size_bytes) {
  std::memset(data, 0, size_bytes);
}

void PinnedMemory::wait() {
  check_cuda(cudaStreamSynchronize(stream_), "waiting for the stream");
}

CudaMemory::CudaMemory() : stream_(create_stream()), pinned_(stream_) {
  for (cudaEvent_t& event : downloaded_)
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
}

CudaMemory::~CudaMemory() {
  for (const cudaEvent_t event : downloaded_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

std::byte* CudaMemory::allocate(size_t size_bytes) {
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, size_bytes); error != cudaSuccess) {
    cudaGetLastError();  // not sticky, but kept until asked for
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    throw_error(ErrorCode::kDevice,
                "not enough GPU memory: an allocation of {:.2f} GiB failed ({}), {:.2f} GiB of "
                "{:.2f} are free: lower --max-total-tokens or --context-length",
                static_cast<double>(size_bytes) / (1ull << 30), cudaGetErrorString(error),
                static_cast<double>(free_bytes) / (1ull << 30),
                static_cast<double>(total_bytes) / (1ull << 30));
  }
  zero(data, size_bytes);
  return static_cast<std::byte*>(data);
}

void CudaMemory::release(std::byte* data, size_t) noexcept {
  cudaFree(data);  // waits for work that may still use it
}

void CudaMemory::upload(void* to, const void* from, size_t size_bytes) {
  ++counts_.uploads;
  counts_.upload_bytes += static_cast<int64_t>(size_bytes);
  // From pageable memory: returns once the bytes are in the driver's staging buffer.
  check_cuda(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, stream_), "an upload");
}

void CudaMemory::upload_pinned(void* to, const void* from, size_t size_bytes) {
  ++counts_.uploads;
  counts_.upload_bytes += static_cast<int64_t>(size_bytes);
  check_cuda(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, stream_), "an upload");
}

void CudaMemory::wait_for(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaSuccess) return;
  if (state != cudaErrorNotReady) check_cuda(state, "work before this point");
  const CountedWait wait(counts_);
  check_cuda(cudaEventSynchronize(event), "work before this point");
}

void CudaMemory::download(void* to, const void* from, size_t size_bytes) {
  ++counts_.downloads;
  counts_.download_bytes += static_cast<int64_t>(size_bytes);
  check_cuda(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToHost, stream_), "a download");
  wait();
}

uint64_t CudaMemory::start_download(void* to, const void* from, size_t size_bytes) {
  ++counts_.downloads;
  counts_.download_bytes += static_cast<int64_t>(size_bytes);
  check_cuda(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToHost, stream_), "a download");
  check_cuda(cudaEventRecord(downloaded_[next_download_ % downloaded_.size()], stream_),
             "recording an event");
  return next_download_++;
}

void CudaMemory::finish_download(uint64_t number) {
  FORESAIL_CHECK(number < next_download_ && next_download_ - number <= downloaded_.size(),
                 "download {} of {} is not under way", number, next_download_);
  wait_for(downloaded_[number % downloaded_.size()]);
}

void CudaMemory::zero(void* data, size_t size_bytes) {
  check_cuda(cudaMemsetAsync(data, 0, size_bytes, stream_), "clearing memory");
}

void CudaMemory::wait() {
  const CountedWait wait(counts_);
  check_cuda(cudaStreamSynchronize(stream_), "the work before this point");
}

double probe_cuda_copy() {
  constexpr size_t kBytes = 1ull << 30;  // more than any cache
  constexpr int kRuns = 8;
  CudaMemory memory;
  const Buffer from(kBytes, memory), to(kBytes, memory);
  cudaEvent_t start, end;
  check_cuda(cudaEventCreate(&start), "creating an event");
  check_cuda(cudaEventCreate(&end), "creating an event");
  float fastest_ms = 0.0f;
  for (int run = 0; run < kRuns; ++run) {
    float ms = 0.0f;
    check_cuda(cudaEventRecord(start, memory.stream()), "recording an event");
    check_cuda(
        cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, memory.stream()),
        "a copy on the device");
    check_cuda(cudaEventRecord(end, memory.stream()), "recording an event");
    memory.wait();
    check_cuda(cudaEventElapsedTime(&ms, start, end), "reading the time");
    if (fastest_ms == 0.0f || ms < fastest_ms) fastest_ms = ms;
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return 2.0 * kBytes / (1e-3 * fastest_ms);
}

}  // namespace foresail
