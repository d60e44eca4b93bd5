#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "checkpoint/printable_name.h"
#include "checkpoint/tensor_list.h"

namespace foresail {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

uint64_t element_count(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, [](uint64_t total, int64_t dim) {
    return total * static_cast<uint64_t>(dim);
  });
}

bool is_float(const StoredType& type) {
  return type.dtype == DType::kBF16 || type.dtype == DType::kF16 || type.dtype == DType::kF32;
}

std::string missing_advice(const std::string& name, const ModelConfig& config) {
  if (name == "lm_head.weight")
    return "add it, or set tie_word_embeddings to true if the embedding is the head";
  if (name.ends_with(".self_attn.q_proj.weight")) return "config.json has no q_lora_rank";
  if (name.find(".self_attn.q_a_") != std::string::npos ||
      name.find(".self_attn.q_b_") != std::string::npos)
    return fmt::format("config.json has q_lora_rank {}", config.q_lora_rank);
  if (name.find(".mlp.experts.") != std::string::npos)
    return fmt::format("config.json has n_routed_experts {}", config.moe.expert_count);
  return fmt::format("config.json has {} layers of a {} model", config.layer_count, config.family);
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& model_dir, const ModelConfig& config)
    : shards_(open_shards(model_dir)), names_(shards_, config) {
  check_complete(config);
}

StoredTensor Checkpoint::stored(const StoredSlice& slice) const {
  return shards_.files[slice.file].header().tensor(slice.tensor);
}

std::string Checkpoint::file_of(const StoredSlice& slice) const {
  return shards_.files[slice.file].path().string();
}

void Checkpoint::check_slice(const std::string& name, const StoredSlice& slice,
                             std::span<const int64_t> shape) const {
  if (!std::equal(shape.begin(), shape.end(), slice.shape.begin(), slice.shape.end()))
    throw_model_error("{}: tensor {} has shape {} but config.json needs {}", file_of(slice), name,
                      shape_text(slice.shape), shape_text(shape));
  const StoredType& type = *stored(slice).type;
  if (!is_float(type))
    throw_model_error("{}: tensor {} is {}: only BF16, F16 and F32 weights are supported yet",
                      file_of(slice), name, type.name);
}

void Checkpoint::check_complete(const ModelConfig& config) {
  const std::vector<TensorSpec> required = all_tensors(config);
  std::unordered_set<std::string> expected;
  for (const TensorSpec& spec : required) {
    const StoredSlice* slice = names_.find(spec.name);
    if (slice == nullptr)
      throw_model_error("{}: tensor {} {} is missing: {}", shards_.source.string(), spec.name,
                        shape_text(spec.shape), missing_advice(spec.name, config));
    check_slice(spec.name, *slice, spec.shape);
    expected.insert(spec.name);
    untaken_.insert(spec.name);
    remaining_bytes_ += spec.element_count() * stored(*slice).type->bits / 8;
  }
  const std::vector<TensorSpec> with_mtp = all_tensors(config, names_.mtp_layer_count());
  for (size_t i = required.size(); i < with_mtp.size(); ++i) {
    const StoredSlice* slice = names_.find(with_mtp[i].name);
    if (slice != nullptr) check_slice(with_mtp[i].name, *slice, with_mtp[i].shape);
    expected.insert(with_mtp[i].name);
  }
  check_no_surplus(config, expected);
}

void Checkpoint::check_no_surplus(const ModelConfig& config,
                                  const std::unordered_set<std::string>& expected) const {
  for (const auto& [name, slice] : names_.slices()) {
    if (expected.contains(name)) continue;
    throw_model_error(
        "{}: tensor {} does not belong to the {} model with {} layers and {} experts that "
        "config.json describes: correct config.json or remove the tensor",
        file_of(slice), printable_name(stored(slice).name), config.family, config.layer_count,
        config.moe.expert_count);
  }
}

bool Checkpoint::has(std::string_view name) const {
  return names_.find(name) != nullptr;
}

HostTensor Checkpoint::take(std::string_view name, std::span<const int64_t> shape) {
  const std::string key(name);
  const StoredSlice* slice = names_.find(name);
  if (slice == nullptr) throw_model_error("{}: tensor {} is missing", shards_.source.string(), key);
  check_slice(key, *slice, shape);

  const StoredTensor tensor = stored(*slice);
  HostTensor taken;
  taken.dtype = *tensor.type->dtype;
  taken.shape.assign(shape.begin(), shape.end());
  taken.data = Buffer(element_count(shape) * size_bytes(taken.dtype));
  shards_.files[slice->file].read(tensor, slice->offset_bytes,
                                  {taken.data.data(), taken.data.size_bytes()});
  if (untaken_.erase(key) > 0) remaining_bytes_ -= taken.data.size_bytes();
  return taken;
}

void Checkpoint::finish() {
  if (untaken_.empty()) return;
  const std::string& name = *std::min_element(untaken_.begin(), untaken_.end());
  throw_model_error("{}: tensor {} was loaded by nobody: {} tensors are left over",
                    file_of(*names_.find(name)), name, untaken_.size());
}

std::unique_ptr<WeightSource> open_checkpoint(const std::filesystem::path& model_dir,
                                              const ModelConfig& config) {
  if (!config.quantization.empty())
    throw_model_error(
        "{}: quantization_config: {} weights are not supported yet: use a BF16 checkpoint",
        (model_dir / "config.json").string(), config.quantization);
  return std::make_unique<Checkpoint>(model_dir, config);
}

}  // namespace foresail
