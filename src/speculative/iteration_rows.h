// The rows of one target pass, request after request: what Iteration hands to the planner and the
// model. Part of Iteration.
#pragma once

#include "kernels/cache_slot.h"
#include "speculative/iteration.h"

namespace foresail {

struct Iteration::Rows {
  std::vector<int32_t> token_ids, positions, slots;
  std::vector<PassRows> requests;
  std::vector<int32_t> row_begin;  // of each request
  // Where a token or lag stands that an iteration before leaves behind; negative: nowhere.
  std::vector<int32_t> carried_tokens, carried_lags;

  void add(const RequestState& request, std::span<const int32_t> tokens, int32_t first_position,
           int page_size) {
    row_begin.push_back(static_cast<int32_t>(token_ids.size()));
    const auto count = static_cast<int32_t>(tokens.size());
    for (int32_t i = 0; i < count; ++i) {
      const int32_t position = first_position + i;
      token_ids.push_back(tokens[i]);
      positions.push_back(position);
      slots.push_back(cache_slot(request.page_table, position, page_size));
    }
    requests.push_back({request.page_table, {count, first_position + count}});
  }
};

}  // namespace foresail
