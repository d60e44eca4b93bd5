// Rotation tables of a model: cos and sin per position, in f32 from float64 angles.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"
#include "kernels/kernel_set.h"

namespace foresail {

// theta^(-2i / dim), unscaled. [dim / 2]
std::vector<double> plain_inv_freq(double theta, int64_t dim);

class RopeTables {
 public:
  // inv_freq [rope_dim / 2]; positions 0 .. position_count-1.
  RopeTables(const std::vector<double>& inv_freq, double amplitude, RopeLayout layout,
             int64_t position_count);
  RopeTables(const ModelConfig& config, int64_t context_len);

  RopeTable view() const { return {cos_.data(), sin_.data(), rope_dim_, layout_}; }
  int64_t position_count() const { return static_cast<int64_t>(cos_.size()) / (rope_dim_ / 2); }
  uint64_t size_bytes() const { return 2 * cos_.size() * sizeof(float); }

 private:
  std::vector<float> cos_, sin_;
  int rope_dim_;
  RopeLayout layout_;
};

}  // namespace foresail
