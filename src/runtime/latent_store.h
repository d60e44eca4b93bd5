// The latent cache of every layer: one allocation per layer of [pages, page_size, c + r].
// Who owns which page is decided elsewhere (cache/); this only holds the bytes.
#pragma once

#include <vector>

#include "kernels/kernel_set.h"
#include "runtime/cache_format.h"
#include "tensor/buffer.h"

namespace foresail {

class LatentStore {
 public:
  LatentStore(int64_t layer_count, int64_t page_count, int page_size, int latent_dim, int rope_dim,
              CacheFormat format, Memory& memory = host_memory());

  // As the keys of a pass name their rows: by pages, or by slots. The latter are the same bytes at
  // page size 1, where a page is the slot of one token.
  std::span<const LatentCache> layers(bool keys_are_slots = false) const {
    return keys_are_slots ? slot_layers_ : layers_;
  }
  int page_size() const { return page_size_; }
  uint64_t size_bytes() const;

 private:
  int page_size_;
  std::vector<Buffer> buffers_;
  std::vector<LatentCache> layers_, slot_layers_;
};

}  // namespace foresail
