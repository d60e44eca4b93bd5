// A WeightSource without files: random values of the shapes a config asks for.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/random_weights.h"
#include "checkpoint/tensor_list.h"
#include "checkpoint/weight_source.h"

namespace foresail {
namespace {

class DummyWeights final : public WeightSource {
 public:
  DummyWeights(const ModelConfig& config, uint64_t seed)
      : seed_(seed), tied_embeddings_(config.tied_embeddings) {
    for (TensorSpec& spec : all_tensors(config)) {
      remaining_bytes_ += spec.size_bytes();
      untaken_.insert(spec.name);
      std::string name = spec.name;
      specs_.emplace(std::move(name), std::move(spec));
    }
    for (TensorSpec& spec : all_tensors(config, config.mtp_layer_count)) {
      std::string name = spec.name;
      specs_.emplace(std::move(name), std::move(spec));
    }
  }

  bool has(std::string_view name) const override { return specs_.contains(std::string(name)); }

  HostTensor take(std::string_view name, std::span<const int64_t> shape) override {
    const std::string key(name);
    const auto found = specs_.find(key);
    if (found == specs_.end())
      throw_model_error("random weights: a model of this config has no tensor {}", key);
    const TensorSpec& spec = found->second;
    if (!std::equal(shape.begin(), shape.end(), spec.shape.begin(), spec.shape.end()))
      throw_model_error("random weights: tensor {} has shape [{}] but [{}] was asked for", key,
                        fmt::join(spec.shape, ", "), fmt::join(shape, ", "));
    HostTensor taken{spec.dtype, spec.shape, Buffer(spec.size_bytes())};
    RandomTensor(seed_, spec, tied_embeddings_)
        .fill(0, {taken.data.data(), taken.data.size_bytes()});
    if (untaken_.erase(key) > 0) remaining_bytes_ -= taken.data.size_bytes();
    return taken;
  }

  void finish() override {
    if (!untaken_.empty())
      throw_model_error("random weights: tensor {} was loaded by nobody: {} tensors are left over",
                        *std::min_element(untaken_.begin(), untaken_.end()), untaken_.size());
  }
  uint64_t total_bytes() const override { return remaining_bytes_; }

 private:
  uint64_t seed_;
  bool tied_embeddings_;
  std::unordered_map<std::string, TensorSpec> specs_;
  std::unordered_set<std::string> untaken_;
  uint64_t remaining_bytes_ = 0;
};

}  // namespace

std::unique_ptr<WeightSource> dummy_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<DummyWeights>(config, seed);
}

}  // namespace foresail
