// Rotation tables of a model: cos and sin per position, in f32 from float64 angles.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"
#include "kernels/kernel_set.h"
#include "tensor/buffer.h"

namespace foresail {

// theta^(-2i / dim), unscaled. [dim / 2]
std::vector<double> plain_inv_freq(double theta, int64_t dim);

class RopeTables {
 public:
  // inv_freq [rope_dim / 2]; positions 0 .. position_count-1.
  RopeTables(const std::vector<double>& inv_freq, double amplitude, RopeLayout layout,
             int64_t position_count, Memory& memory = host_memory());
  RopeTables(const ModelConfig& config, int64_t context_len, Memory& memory = host_memory());

  RopeTable view() const { return {cos_.as<float>(), sin_.as<float>(), rope_dim_, layout_}; }
  int64_t position_count() const { return position_count_; }
  uint64_t size_bytes() const { return cos_.size_bytes() + sin_.size_bytes(); }

 private:
  Buffer cos_, sin_;
  int64_t position_count_;
  int rope_dim_;
  RopeLayout layout_;
};

}  // namespace foresail
