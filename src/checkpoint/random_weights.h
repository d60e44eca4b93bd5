// Random tensors that keep activations sane: matrices with variance 1 / fan-in, norms near 1.
// A tensor's values are a pure function of (seed, tensor name, element index), so any part of it
// can be made at any time, by any thread.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/tensor_list.h"

namespace foresail {

class RandomTensor {
 public:
  RandomTensor(uint64_t seed, const TensorSpec& spec, bool tied_embeddings);

  // Elements [first_element, ...) in the dtype of the spec (BF16 or F32). first_element must be
  // even: two values come from one random number.
  void fill(uint64_t first_element, std::span<std::byte> out) const;

 private:
  // The sum of four bytes is nearly normal; each sum has its value in a table.
  static constexpr int kLevels = 4 * 255 + 1;
  uint64_t key_;
  DType dtype_;
  float values_[kLevels];
  uint16_t bf16_values_[kLevels];
};

}  // namespace foresail
