// Every tensor a model of a config has: the one list that loading, random weights, make-model and
// inspect share. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "tensor/dtype.h"

namespace foresail {

struct TensorSpec {
  std::string name;            // canonical, see weight_source.h
  std::vector<int64_t> shape;  // row-major, out x in for matrices
  DType dtype = DType::kBF16;

  uint64_t element_count() const;  // throws Error{kModel} when the product overflows
  uint64_t size_bytes() const;
};

// In file order: embedding, layers, final norm, head (unless tied). With `mtp_layers` > 0 that many
// MTP layers follow, each with its own embedding and head.
std::vector<TensorSpec> all_tensors(const ModelConfig& config, int64_t mtp_layers = 0);

struct TensorTotals {
  uint64_t parameter_count = 0;
  uint64_t size_bytes = 0;
};
TensorTotals total_of(const std::vector<TensorSpec>& specs);

}  // namespace foresail
