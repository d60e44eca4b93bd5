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
                       int64_t position_count, Memory& memory)
    : position_count_(position_count),
      rope_dim_(static_cast<int>(2 * inv_freq.size())),
      layout_(layout) {
  const size_t table_bytes = position_count * inv_freq.size() * sizeof(float);
  Buffer cos_table(table_bytes), sin_table(table_bytes);
  size_t at = 0;
  for (int64_t position = 0; position < position_count; ++position) {
    for (const double frequency : inv_freq) {
      // The published implementations form the angle in float32; at position 1e5 the product's
      // rounding is visible, so do the same.
      const float angle = static_cast<float>(position) * static_cast<float>(frequency);
      cos_table.as<float>()[at] =
          static_cast<float>(std::cos(static_cast<double>(angle)) * amplitude);
      sin_table.as<float>()[at++] =
          static_cast<float>(std::sin(static_cast<double>(angle)) * amplitude);
    }
  }
  cos_ = moved_to(memory, std::move(cos_table));
  sin_ = moved_to(memory, std::move(sin_table));
}

RopeTables::RopeTables(const ModelConfig& config, int64_t context_len, Memory& memory)
    : RopeTables(config.inv_freq(context_len), config.rope_amplitude(context_len),
                 config.rope.interleaved ? RopeLayout::kAdjacentPairs : RopeLayout::kHalfSplit,
                 context_len, memory) {}

}  // namespace foresail
