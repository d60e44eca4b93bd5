// A checkpoint on disk as a WeightSource. Everything the headers can tell is checked when it is
// opened: nothing is read before every tensor is known to be there, with the right shape and type.
#pragma once

#include <string>
#include <unordered_set>

#include "checkpoint/name_map.h"
#include "checkpoint/weight_source.h"

namespace foresail {

class Checkpoint final : public WeightSource {
 public:
  Checkpoint(const std::filesystem::path& model_dir, const ModelConfig& config);

  bool has(std::string_view name) const override;
  HostTensor take(std::string_view name, std::span<const int64_t> shape) override;
  void finish() override;
  uint64_t total_bytes() const override { return remaining_bytes_; }

 private:
  void check_complete(const ModelConfig& config);
  void check_no_surplus(const ModelConfig& config,
                        const std::unordered_set<std::string>& expected) const;
  void check_slice(const std::string& name, const StoredSlice& slice,
                   std::span<const int64_t> shape) const;
  StoredTensor stored(const StoredSlice& slice) const;
  std::string file_of(const StoredSlice& slice) const;

  ShardSet shards_;
  NameMap names_;
  std::unordered_set<std::string> untaken_;  // required names that are still to be taken
  uint64_t remaining_bytes_ = 0;
};

}  // namespace foresail
