// Where weights come from: a checkpoint on disk or a random generator of the same shapes.
// Names are the canonical Hugging Face names without wrapper prefix, one tensor per expert
// ("model.layers.3.mlp.experts.7.gate_proj.weight"); fused files and wrappers are resolved inside.
// Thread rule: one caller.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace foresail {

struct HostTensor {
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;
  Buffer data;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(std::string_view name) const = 0;
  // Reads one tensor and marks it used. Throws Error{kModel} naming file and tensor when it is
  // missing or its shape differs from `shape`.
  virtual HostTensor take(std::string_view name, std::span<const int64_t> shape) = 0;
  // Throws when the files hold a tensor that was neither taken nor is known to be ignorable.
  virtual void finish() = 0;
  virtual uint64_t total_bytes() const = 0;  // of the tensors still to be taken, for progress
};

// Opens DIR (model.safetensors, or model.safetensors.index.json with its shards).
std::unique_ptr<WeightSource> open_checkpoint(const std::filesystem::path& model_dir,
                                              const ModelConfig& config);
// Opens the weights of an EAGLE head: names as the files have them.
std::unique_ptr<WeightSource> open_draft_checkpoint(const std::filesystem::path& draft_dir);
// Random values of the right shapes, a pure function of (seed, tensor name). Never all zero.
std::unique_ptr<WeightSource> dummy_weights(const ModelConfig& config, uint64_t seed);

}  // namespace foresail
