#include "model/rope.h"

#include <cmath>

namespace foresail {

std::vector<double> plain_inv_freq(double theta, int64_t dim) {
  std::vector<double> result;
  for (int64_t i = 0; i < dim / 2; ++i)
    result.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  return result;
}

RopeTables::RopeTables(const std::vector<double>& inv_freq, double amplitude, RopeLayout layout,
                       int64_t position_count)
    : rope_dim_(static_cast<int>(2 * inv_freq.size())), layout_(layout) {
  cos_.reserve(position_count * inv_freq.size());
  sin_.reserve(position_count * inv_freq.size());
  for (int64_t position = 0; position < position_count; ++position) {
    for (const double frequency : inv_freq) {
      // The published implementations form the angle in float32; at position 1e5 the product's
      // rounding is visible, so do the same.
      const float angle = static_cast<float>(position) * static_cast<float>(frequency);
      cos_.push_back(static_cast<float>(std::cos(static_cast<double>(angle)) * amplitude));
      sin_.push_back(static_cast<float>(std::sin(static_cast<double>(angle)) * amplitude));
    }
  }
}

RopeTables::RopeTables(const ModelConfig& config, int64_t context_len)
    : RopeTables(config.inv_freq(context_len), config.rope_amplitude(context_len),
                 config.rope.interleaved ? RopeLayout::kAdjacentPairs : RopeLayout::kHalfSplit,
                 context_len) {}

}  // namespace foresail
