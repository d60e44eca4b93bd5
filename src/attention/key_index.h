// Key lists of the `indexed` backend: for every request the cache slot of each key, one after the
// other, as a kernel reads them that knows no pages (page size 1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foresail {

struct KeyIndex {
  std::vector<int32_t> kv_indptr;   // [requests + 1]
  std::vector<int32_t> kv_indices;  // [kv_indptr.back()] slot = page * page_size + offset
};

// One request of a build: its block table row and how many keys are listed.
struct KeyIndexRow {
  const int32_t* block_table = nullptr;
  int32_t key_count = 0;
};

// A block of the build lists at most this many keys, however long the request is.
constexpr int32_t kKeysPerBlock = 512;

// Block `block` of a request: keys [block * kKeysPerBlock, ...) to `out`, the request's list.
void fill_key_block(const KeyIndexRow& row, int page_size, int32_t block, int32_t* out);

// All requests in one build. A draft loop lists the keys of its last step: the list of an earlier
// step is the beginning of it.
KeyIndex build_key_index(std::span<const KeyIndexRow> rows, int page_size);

}  // namespace foresail
