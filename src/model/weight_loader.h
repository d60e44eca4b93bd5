// Turns named checkpoint tensors into packed matrices and float vectors of one kernel set.
// A tensor lives on the host only while it is being packed.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "checkpoint/weight_source.h"
#include "kernels/kernel_set.h"

namespace foresail {

using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

class WeightLoader {
 public:
  WeightLoader(WeightSource& source, KernelSet& kernels, LoadProgress progress = {});

  bool has(std::string_view name) const { return source_.has(name); }
  HostTensor tensor(std::string_view name, std::initializer_list<int64_t> shape);
  // f32 [dim] in the memory of the kernels.
  Buffer vector(std::string_view name, int64_t dim);
  Buffer optional_vector(std::string_view name, int64_t dim);  // empty when absent
  MatrixPtr matrix(std::string_view name, int64_t n_out, int64_t n_in);
  // Rows of `first` above rows of `second`, packed as one.
  MatrixPtr stacked(std::string_view first, std::string_view second, int64_t n_out_each,
                    int64_t n_in);
  KernelSet& kernels() { return kernels_; }
  uint64_t packed_bytes() const { return packed_bytes_; }
  // Packs and accounts for the memory.
  MatrixPtr pack(const HostMatrix& weight);
  void account(uint64_t size_bytes) { packed_bytes_ += size_bytes; }

 private:
  WeightSource& source_;
  KernelSet& kernels_;
  LoadProgress progress_;
  uint64_t total_bytes_;
  uint64_t done_bytes_ = 0;
  uint64_t packed_bytes_ = 0;
};

// Element i of a kF32, kBF16 or kF16 tensor.
float element(const HostTensor& tensor, int64_t i);

}  // namespace foresail
