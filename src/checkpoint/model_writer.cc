#include "checkpoint/model_writer.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/byte_tokenizer.h"
#include "checkpoint/config_writer.h"
#include "checkpoint/eagle_writer.h"
#include "checkpoint/random_weights.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_list.h"

namespace foresail {
namespace {

constexpr size_t kBufferBytes = 4u << 20;
constexpr uint64_t kSpareBytes = 64u << 20;  // headers, tokenizer, what the file system needs

void prepare_folder(const std::filesystem::path& dir, uint64_t needed_bytes) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error || !std::filesystem::is_directory(dir))
    throw_error(ErrorCode::kUsage, "cannot create the folder {}: {}", dir.string(),
                error ? error.message() : "a file of that name is there");
  const std::filesystem::directory_iterator first(dir), none;
  if (first != none)
    throw_error(ErrorCode::kUsage, "{} is not empty: give a new folder (this one has {})",
                dir.string(), first->path().filename().string());
  const auto space = std::filesystem::space(dir, error);
  if (!error && space.available < needed_bytes + kSpareBytes)
    throw_error(ErrorCode::kUsage,
                "{} needs {} bytes but {} are free: use another disk or options.layers",
                dir.string(), needed_bytes, space.available);
}

// Consecutive tensors, each group at most max_shard_bytes (or one tensor).
std::vector<std::vector<TensorSpec>> split_into_shards(std::vector<TensorSpec> specs,
                                                       uint64_t max_shard_bytes) {
  std::vector<std::vector<TensorSpec>> shards;
  uint64_t shard_bytes = 0;
  for (TensorSpec& spec : specs) {
    const uint64_t tensor_bytes = spec.size_bytes();
    if (shards.empty() || shard_bytes + tensor_bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += tensor_bytes;
    shards.back().push_back(std::move(spec));
  }
  return shards;
}

std::string shard_name(size_t shard, size_t shard_count) {
  if (shard_count == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shard_count);
}

void write_index(const std::filesystem::path& dir,
                 const std::vector<std::vector<TensorSpec>>& shards, uint64_t total_bytes) {
  Json map = Json::object();
  for (size_t shard = 0; shard < shards.size(); ++shard)
    for (const TensorSpec& spec : shards[shard]) map[spec.name] = shard_name(shard, shards.size());
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", map}};
  write_file(dir / "model.safetensors.index.json", json_text(index, 2) + "\n");
}

}  // namespace

void write_model(const std::filesystem::path& dir, const ModelConfig& config, uint64_t seed,
                 const WriteProgress& progress, uint64_t max_shard_bytes) {
  if (config.vocab_size < byte_tokenizer_size())
    throw_error(ErrorCode::kUsage,
                "a vocabulary of {} is smaller than the {} ids of the byte tokenizer",
                config.vocab_size, byte_tokenizer_size());
  std::vector<TensorSpec> specs = all_tensors(config, config.mtp_layer_count);
  const uint64_t total_bytes = total_of(specs).size_bytes;
  prepare_folder(dir, total_bytes);

  const auto shards = split_into_shards(std::move(specs), max_shard_bytes);
  std::vector<std::byte> buffer(kBufferBytes);
  uint64_t done_bytes = 0;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    SafetensorsWriter writer(dir / shard_name(shard, shards.size()), shards[shard]);
    for (const TensorSpec& spec : shards[shard]) {
      const RandomTensor random(seed, spec, config.tied_embeddings);
      const uint64_t tensor_bytes = spec.size_bytes();
      for (uint64_t offset = 0; offset < tensor_bytes; offset += kBufferBytes) {
        const auto part =
            std::span(buffer).first(std::min<uint64_t>(kBufferBytes, tensor_bytes - offset));
        random.fill(offset / size_bytes(spec.dtype), part);
        writer.append(part);
        done_bytes += part.size();
        if (progress) progress(done_bytes, total_bytes);
      }
    }
    writer.close();
  }
  if (shards.size() > 1) write_index(dir, shards, total_bytes);
  write_file(dir / "tokenizer.json", byte_tokenizer_json());
  write_file(dir / "tokenizer_config.json", byte_tokenizer_config_json(config.max_positions));
  write_file(dir / "generation_config.json", to_generation_config_json(config));
  write_file(dir / "config.json", to_config_json(config));
}

void write_preset(const std::filesystem::path& dir, const Preset& preset, uint64_t seed,
                  const WriteProgress& progress) {
  write_model(dir, preset.config, seed, progress);
  if (preset.draft) write_eagle_draft(dir / "draft", preset.config, *preset.draft, seed);
}

}  // namespace foresail
