// Carries out a StepPlan on the host: one prefill pass, one decode iteration. Knows slots, and
// keeps per slot what a device would: tokens, drafts, sampling state, and a page table replica.
// Owner: EngineLoop. Thread rule: engine thread.
#pragma once

#include <vector>

#include "cache/page_table.h"
#include "scheduler/step_plan.h"
#include "speculative/iteration.h"

namespace foresail {

struct StepOutcome {
  struct Row {
    SlotId slot;
    RequestId request;
    bool verified = false;             // a row of the decode iteration
    bool failed = false;               // this request only
    std::vector<int32_t> drafts = {};  // what was verified
    IterationResult result;
  };
  bool failed = false;    // nothing of the step counts
  std::vector<Row> rows;  // the last chunks in the order of the plan, then its decode rows
};

class StepExecutor {
 public:
  StepExecutor(Iteration& iteration, int32_t slots, int32_t columns);

  // The slot's state begins anew; before the step whose first chunk is in the slot.
  void start(SlotId slot, RequestState state);
  StepOutcome run(const StepPlan& plan);

 private:
  void prefill(const StepPlan& plan, StepOutcome& outcome);
  void decode(const StepPlan& plan, StepOutcome& outcome);

  Iteration& iteration_;
  PageTable table_;
  std::vector<RequestState> slots_;
};

}  // namespace foresail
