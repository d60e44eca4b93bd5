#include "engine/fill_caches.h"

#include <algorithm>

#include "base/random.h"
#include "kernels/element.h"
#include "tensor/buffer.h"

namespace foresail {

void fill_caches(const LatentStore& store, Memory& memory, int64_t first_page, int64_t page_count,
                 uint64_t seed) {
  for (const LatentCache& cache : store.layers()) {
    const int64_t count =
        static_cast<int64_t>(cache.page_size) * (cache.latent_dim + cache.rope_dim);
    const size_t page_bytes = static_cast<size_t>(count) * size_bytes(cache.dtype);
    std::byte* const pages =
        static_cast<std::byte*>(cache.data) + static_cast<size_t>(first_page) * page_bytes;
    const size_t bytes = static_cast<size_t>(page_count) * page_bytes;
    Buffer copy(memory.is_host() ? 0 : bytes);
    std::byte* const numbers = memory.is_host() ? pages : copy.data();
    for (int64_t i = 0; i < count; ++i) {
      const auto value =
          static_cast<float>(3.4 * random_uniform(seed, i, RandomPurpose::kShuffle) - 1.7);
      store_latent_element(cache, numbers, i, value);
    }
    for (size_t at = page_bytes; at < bytes; at += page_bytes)
      std::copy_n(numbers, page_bytes, numbers + at);
    if (!memory.is_host()) memory.upload(pages, numbers, bytes);
  }
}

}  // namespace foresail
