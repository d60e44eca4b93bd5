// Memory of the GPU, and the pinned host memory that copies go through. All work is queued on one
// stream. Owner: the CUDA set. Thread rule: one caller.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <string_view>

#include "kernels/device_counts.h"
#include "tensor/memory.h"

namespace foresail {

// Throws Error{kDevice} naming what was tried and the driver's reason.
void check_cuda(cudaError_t error, std::string_view what);

class PinnedMemory final : public Memory {
 public:
  explicit PinnedMemory(cudaStream_t stream) : stream_(stream) {}
  std::byte* allocate(size_t size_bytes) override;
  void release(std::byte* data, size_t size_bytes) noexcept override;
  bool is_host() const override { return true; }
  Memory& staging() override { return *this; }
  void upload(void* to, const void* from, size_t size_bytes) override;
  void download(void* to, const void* from, size_t size_bytes) override;
  void zero(void* data, size_t size_bytes) override;
  void wait() override;

 private:
  cudaStream_t stream_;
};

class CudaMemory final : public Memory {
 public:
  CudaMemory();
  ~CudaMemory() override;
  std::byte* allocate(size_t size_bytes) override;
  void release(std::byte* data, size_t size_bytes) noexcept override;
  bool is_host() const override { return false; }
  Memory& staging() override { return pinned_; }
  void upload(void* to, const void* from, size_t size_bytes) override;
  void download(void* to, const void* from, size_t size_bytes) override;
  uint64_t start_download(void* to, const void* from, size_t size_bytes) override;
  void finish_download(uint64_t number) override;
  void zero(void* data, size_t size_bytes) override;
  void wait() override;

  cudaStream_t stream() const { return stream_; }
  // As upload, but `from` is pinned and must stay until the copy is done.
  void upload_pinned(void* to, const void* from, size_t size_bytes);
  // Returns when the event has happened; only waiting for it counts.
  void wait_for(cudaEvent_t event);

  const DeviceCounts& counts() const { return counts_; }
  DeviceCounts& counts() { return counts_; }

 private:
  cudaStream_t stream_;
  PinnedMemory pinned_;
  std::array<cudaEvent_t, 4> downloaded_ = {};  // of the latest downloads under way
  uint64_t next_download_ = 0;
  DeviceCounts counts_;
};

}  // namespace foresail
