// The safetensors files of a model folder: model.safetensors alone, or the shards that
// model.safetensors.index.json names. The index is checked against the shards' own headers.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"

namespace foresail {

// The parsed weight_map. metadata.total_size is not read: released files are wrong about it.
struct ShardIndex {
  std::vector<std::string> shards;                         // distinct plain file names, sorted
  std::vector<std::pair<std::string, size_t>> weight_map;  // tensor -> index into shards, sorted
};

// `where` names the index file. Refuses file names that leave the folder or clash by case.
ShardIndex parse_shard_index(const std::string& text, const std::string& where);

struct ShardSet {
  std::filesystem::path source;  // the file that says which tensors there are, for messages
  std::vector<SafetensorsFile> files;
};

// Opens every shard and checks that the index and the headers tell the same story.
ShardSet open_shards(const std::filesystem::path& model_dir);

}  // namespace foresail
