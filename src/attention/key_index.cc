#include "attention/key_index.h"

#include <algorithm>

#include "kernels/cache_slot.h"

namespace foresail {

void fill_key_block(const KeyIndexRow& row, int page_size, int32_t block, int32_t* out) {
  const int32_t begin = block * kKeysPerBlock;
  const int32_t end = std::min(row.key_count, begin + kKeysPerBlock);
  for (int32_t key = begin; key < end; ++key)
    out[key] = cache_slot(row.block_table, key, page_size);
}

KeyIndex build_key_index(std::span<const KeyIndexRow> rows, int page_size) {
  KeyIndex index;
  index.kv_indptr.assign(1, 0);
  for (const KeyIndexRow& row : rows)
    index.kv_indptr.push_back(index.kv_indptr.back() + row.key_count);
  index.kv_indices.resize(index.kv_indptr.back());
  for (size_t i = 0; i < rows.size(); ++i)
    for (int32_t block = 0; block * kKeysPerBlock < rows[i].key_count; ++block)
      fill_key_block(rows[i], page_size, block, index.kv_indices.data() + index.kv_indptr[i]);
  return index;
}

}  // namespace foresail
