// A weight in panels of P = 16 or 32 outputs, as the instruction set likes it: bf16
// [N/P][K/2][P][2], or f32 [N/P][K][P]; zeros behind odd ends. A panel is one contiguous stream.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/kernel_set.h"
#include "tensor/buffer.h"

namespace foresail {

// Memory for packed weights, handed out from large slabs: weights of a few MiB with mappings of
// their own would lie on 4 KiB pages at both ends, and streaming them would wait for the TLB.
class WeightArena {
 public:
  struct Piece {
    std::shared_ptr<Buffer> slab;  // keeps the memory alive
    std::byte* data = nullptr;     // zeros, 64-byte aligned
  };
  Piece take(int64_t size_bytes);

 private:
  std::shared_ptr<Buffer> slab_;
  int64_t used_bytes_ = 0;
};

class CpuMatrix final : public Matrix {
 public:
  CpuMatrix(const HostMatrix& weight, DType dtype, int panel_lanes, WeightArena& arena,
            ThreadPool& pool);
  uint64_t size_bytes() const override {
    return static_cast<uint64_t>(panel_count() * panel_bytes_);
  }
  bool is_bf16() const { return is_bf16_; }
  int64_t panel_count() const { return (n_out() + panel_lanes_ - 1) / panel_lanes_; }
  int64_t panel_bytes() const { return panel_bytes_; }
  const void* data() const { return memory_.data; }

 private:
  bool is_bf16_;
  int64_t panel_lanes_;
  int64_t panel_bytes_;
  WeightArena::Piece memory_;
};

}  // namespace foresail
