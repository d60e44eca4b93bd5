// From the names in the files to the canonical names of weight_source.h: wrapper prefixes are
// stripped, fused expert tensors are split into per-expert slices, ignorable tensors dropped.
// Read-only after construction.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/shard_index.h"

namespace foresail {

// A whole stored tensor or one expert's contiguous part of a fused one.
struct StoredSlice {
  uint32_t file = 0;
  uint32_t tensor = 0;  // index into the file's header
  uint64_t offset_bytes = 0;
  std::vector<int64_t> shape;
};

class NameMap {
 public:
  NameMap(const ShardSet& shards, const ModelConfig& config);

  const StoredSlice* find(std::string_view canonical) const;
  const std::map<std::string, StoredSlice, std::less<>>& slices() const { return slices_; }
  // MTP layers (index >= layer_count with an eh_proj) that the files hold.
  int64_t mtp_layer_count() const { return mtp_layer_count_; }
  size_t ignored_count() const { return ignored_count_; }

 private:
  void add(const ShardSet& shards, const ModelConfig& config, uint32_t file, uint32_t tensor);
  void add_fused(const ShardSet& shards, const ModelConfig& config, const std::string& layer,
                 bool is_down, StoredSlice whole);
  void insert(const ShardSet& shards, const std::string& canonical, StoredSlice slice);

  std::map<std::string, StoredSlice, std::less<>> slices_;
  int64_t mtp_layer_count_ = 0;
  size_t ignored_count_ = 0;
};

// The name without a vision wrapper's prefix.
std::string canonical_name(std::string_view stored);
// Tensors that no text model needs: rotary tables, KV-cache scales, and in a wrapper the vision
// part.
bool is_ignorable(std::string_view canonical, const ModelConfig& config);

}  // namespace foresail
