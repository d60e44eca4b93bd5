// A golden checkpoint in memory, to be broken in one way and written out again.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "unit/checkpoint/temp_folder.h"

namespace foresail {

struct EditableTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

struct EditableCheckpoint {
  std::map<std::string, EditableTensor> tensors;
  Json config;

  explicit EditableCheckpoint(const std::string& golden) {
    const auto dir = std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/goldens" / golden;
    config = *parse_json(read_text_file(dir / "config.json", 1 << 20));
    const SafetensorsFile file(dir / "model.safetensors");
    for (size_t i = 0; i < file.header().tensor_count(); ++i) {
      const StoredTensor tensor = file.header().tensor(i);
      EditableTensor copy{*tensor.type->dtype, {tensor.shape.begin(), tensor.shape.end()}, {}};
      copy.bytes.resize(tensor.end_bytes - tensor.begin_bytes);
      file.read(tensor, 0, copy.bytes);
      tensors[std::string(tensor.name)] = std::move(copy);
    }
  }

  void add(const std::string& name, std::vector<int64_t> shape, DType dtype = DType::kBF16) {
    EditableTensor tensor{dtype, std::move(shape), {}};
    tensor.bytes.resize(TensorSpec{name, tensor.shape, dtype}.size_bytes());
    tensors[name] = std::move(tensor);
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    node.key() = to;
    tensors.insert(std::move(node));
  }

  static void write_shard(const std::filesystem::path& path,
                          const std::map<std::string, EditableTensor>& part) {
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : part) specs.push_back({name, tensor.shape, tensor.dtype});
    SafetensorsWriter writer(path, specs);
    for (const auto& [name, tensor] : part) writer.append(tensor.bytes);
    writer.close();
  }
  void write(const std::filesystem::path& dir) const {
    write_file(dir / "config.json", json_text(config));
    write_shard(dir / "model.safetensors", tensors);
  }
  // Tensors alternate between shards a.safetensors and b.safetensors; returns the index.
  Json write_two_shards(const std::filesystem::path& dir) const {
    write_file(dir / "config.json", json_text(config));
    std::map<std::string, EditableTensor> parts[2];
    Json map = Json::object();
    size_t i = 0;
    for (const auto& [name, tensor] : tensors) {
      map[name] = i % 2 ? "b.safetensors" : "a.safetensors";
      parts[i++ % 2][name] = tensor;
    }
    write_shard(dir / "a.safetensors", parts[0]);
    write_shard(dir / "b.safetensors", parts[1]);
    const Json index = {{"metadata", {{"total_size", 1}}},
                        {"weight_map", map}};  // a wrong total is no error
    write_file(dir / "model.safetensors.index.json", json_text(index));
    return index;
  }
};

}  // namespace foresail
