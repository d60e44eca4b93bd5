// Where the cache entry of a position lies.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace foresail {

// Slot (page * page_size + offset) of `position` in a request's page table. Beyond the request's
// pages the table holds the sink page, or in debug builds a negative one: then this throws
// Error{kDevice}, the step fails and nothing is written.
inline int32_t cache_slot(const int32_t* page_table, int32_t position, int page_size) {
  const int32_t page = page_table[position / page_size];
  if (page < 0) throw_error(ErrorCode::kDevice, "position {} has no page", position);
  return page * page_size + position % page_size;
}

}  // namespace foresail
