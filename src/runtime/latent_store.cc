#include "runtime/latent_store.h"

namespace foresail {

LatentStore::LatentStore(int64_t layer_count, int64_t page_count, int page_size, int latent_dim,
                         int rope_dim, CacheFormat format, Memory& memory)
    : page_size_(page_size) {
  const size_t layer_bytes = static_cast<size_t>(page_count) * page_size * (latent_dim + rope_dim) *
                             foresail::size_bytes(format.dtype);
  for (int64_t layer = 0; layer < layer_count; ++layer) {
    buffers_.emplace_back(layer_bytes, memory);
    layers_.push_back({buffers_.back().data(), format.dtype, page_size, latent_dim, rope_dim,
                       format.scale, page_count});
    slot_layers_.push_back({buffers_.back().data(), format.dtype, 1, latent_dim, rope_dim,
                            format.scale, page_count * page_size});
  }
}

uint64_t LatentStore::size_bytes() const {
  uint64_t total = 0;
  for (const Buffer& buffer : buffers_) total += buffer.size_bytes();
  return total;
}

}  // namespace foresail
