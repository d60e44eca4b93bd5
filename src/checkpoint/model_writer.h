// Writes a config with random weights as a checkpoint in Hugging Face layout: config.json,
// generation_config.json, tokenizer files and safetensors shards with their index.
// Memory stays at one small buffer whatever the model's size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/model_config.h"
#include "checkpoint/presets.h"

namespace foresail {

// Called now and then with the bytes written so far and in all.
using WriteProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// The largest shard written, as released checkpoints have it.
inline constexpr uint64_t kMaxShardBytes = 4'000'000'000;

// `dir` must not exist or be empty. config.json is written last: a folder with one is complete.
void write_model(const std::filesystem::path& dir, const ModelConfig& config, uint64_t seed,
                 const WriteProgress& progress = {}, uint64_t max_shard_bytes = kMaxShardBytes);
// The model and, when the preset has one, its draft head in DIR/draft.
void write_preset(const std::filesystem::path& dir, const Preset& preset, uint64_t seed,
                  const WriteProgress& progress = {});

}  // namespace foresail
