// Made-up keys, for measurements whose prompts are not run.
#pragma once

#include <cstdint>

#include "tensor/memory.h"
#include "runtime/latent_store.h"

namespace foresail {

// Writes unit-scale numbers, as after a norm, to pages [first_page, first_page + page_count) of
// every layer: the same in every page.
void fill_caches(const LatentStore& store, Memory& memory, int64_t first_page, int64_t page_count,
                 uint64_t seed);

}  // namespace foresail
