#include "checkpoint/draft_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace foresail {
namespace {

// t2d says which target tokens have a draft id: d2t says the same and more.
bool is_ignorable(const std::string& name) {
  return name == "t2d" || name.ends_with("rotary_emb.inv_freq");
}

}  // namespace

DraftCheckpoint::DraftCheckpoint(const std::filesystem::path& draft_dir)
    : shards_(open_shards(draft_dir)) {
  for (uint32_t file = 0; file < shards_.files.size(); ++file) {
    const SafetensorsHeader& header = shards_.files[file].header();
    for (uint32_t i = 0; i < header.tensor_count(); ++i) {
      const StoredTensor tensor = header.tensor(i);
      const std::string name(tensor.name);
      if (is_ignorable(name)) continue;
      tensors_[name] = {file, i, false};
      remaining_bytes_ += tensor.end_bytes - tensor.begin_bytes;
    }
  }
}

HostTensor DraftCheckpoint::take(std::string_view name, std::span<const int64_t> shape) {
  const auto found = tensors_.find(std::string(name));
  if (found == tensors_.end())
    throw_model_error("{}: tensor {} is missing", shards_.source.string(), name);
  const SafetensorsFile& file = shards_.files[found->second.file];
  const StoredTensor tensor = file.header().tensor(found->second.tensor);
  if (!std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end()))
    throw_model_error("{}: tensor {} has shape [{}] but config.json needs [{}]",
                      file.path().string(), name, fmt::join(tensor.shape, ", "),
                      fmt::join(shape, ", "));
  if (!tensor.type->dtype ||
      (name != "d2t" && *tensor.type->dtype != DType::kBF16 && *tensor.type->dtype != DType::kF16 &&
       *tensor.type->dtype != DType::kF32))
    throw_model_error("{}: tensor {} is {}: only BF16, F16 and F32 weights are supported yet",
                      file.path().string(), name, tensor.type->name);
  HostTensor taken{*tensor.type->dtype,
                   {shape.begin(), shape.end()},
                   Buffer(tensor.end_bytes - tensor.begin_bytes)};
  file.read(tensor, 0, {taken.data.data(), taken.data.size_bytes()});
  if (!std::exchange(found->second.taken, true)) remaining_bytes_ -= taken.data.size_bytes();
  return taken;
}

void DraftCheckpoint::finish() {
  for (const auto& [name, entry] : tensors_)
    if (!entry.taken)
      throw_model_error(
          "{}: tensor {} belongs to no supported draft head: remove it or check the model's kind",
          shards_.files[entry.file].path().string(), name);
}

std::unique_ptr<WeightSource> open_draft_checkpoint(const std::filesystem::path& draft_dir) {
  return std::make_unique<DraftCheckpoint>(draft_dir);
}

}  // namespace foresail
