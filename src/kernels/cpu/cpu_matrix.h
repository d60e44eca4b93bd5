// A weight in panels of sixteen outputs: bf16 [N/16][K/2][16][2], or f32 [N/16][K][16]; zeros
// behind odd ends. A panel is one contiguous stream.
#pragma once

#include "base/thread_pool.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/kernel_set.h"
#include "tensor/buffer.h"

namespace foresail {

class CpuMatrix final : public Matrix {
 public:
  CpuMatrix(const HostMatrix& weight, DType dtype, ThreadPool& pool);
  uint64_t size_bytes() const override { return buffer_.size_bytes(); }
  bool is_bf16() const { return is_bf16_; }
  int64_t panel_count() const { return (n_out() + kLanes - 1) / kLanes; }
  int64_t panel_bytes() const { return panel_bytes_; }
  const void* data() const { return buffer_.data(); }

 private:
  bool is_bf16_;
  int64_t panel_bytes_;
  Buffer buffer_;
};

}  // namespace foresail
