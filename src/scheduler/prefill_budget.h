// How one prefill pass is shared: the prompt at the head of the line and the short ones behind it.
// A pure function.
// Any thread.
#pragma once

#include <span>
#include <vector>

#include "base/ids.h"

namespace foresail {

struct PrefillClaim {
  Tokens begin;   // computed or planned already
  Tokens length;  // of the whole prompt
  int32_t priority = 0;
};

// Where each claim's chunk ends; `begin` when it gets none. Claims come in the order they should
// run. The head gets at least half of the budget, the others share the rest, shortest first, and
// what they leave goes back to the head. A budget too small to halve goes to either side in turns.
// Chunks before the last end on a page border, except where the budget is below one page.
std::vector<Tokens> split_prefill_budget(std::span<const PrefillClaim> claims, Tokens budget,
                                         PageSize page_size, bool head_first);

}  // namespace foresail
