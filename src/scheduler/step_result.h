// What came of a step: per sampled row the tokens that were committed to its request.
// A plain value, made by the engine's commit from what the executor returned.
// Any thread.
#pragma once

#include <vector>

#include "cache/page_pool.h"

namespace foresail {

struct RowResult {
  SlotId slot;
  int32_t accept_len =
      0;  // committed tokens, the bonus token included; fewer where a stop cut the run
  bool finished = false;  // a stop rule or a limit ended the request with these tokens
  bool failed = false;    // nothing of this step counts and the request ends (NaN, device error)
};

struct StepResult {
  DeviceEpoch step = 0;
  bool failed = false;          // the whole step: every request in it ends, rows may be empty
  std::vector<RowResult> rows;  // the last chunks in the order of the plan, then its decode rows
  std::vector<int32_t> tokens;  // of all rows, in order
};

}  // namespace foresail
