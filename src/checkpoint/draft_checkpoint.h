// The files of a draft head as a WeightSource: names as they stand, whatever dtype is stored.
#pragma once

#include <string>
#include <unordered_map>

#include "checkpoint/shard_index.h"
#include "checkpoint/weight_source.h"

namespace foresail {

class DraftCheckpoint final : public WeightSource {
 public:
  explicit DraftCheckpoint(const std::filesystem::path& draft_dir);

  bool has(std::string_view name) const override { return tensors_.contains(std::string(name)); }
  HostTensor take(std::string_view name, std::span<const int64_t> shape) override;
  void finish() override;
  uint64_t total_bytes() const override { return remaining_bytes_; }

 private:
  struct Entry {
    uint32_t file = 0;
    uint32_t tensor = 0;
    bool taken = false;
  };
  ShardSet shards_;
  std::unordered_map<std::string, Entry> tensors_;
  uint64_t remaining_bytes_ = 0;
};

}  // namespace foresail
