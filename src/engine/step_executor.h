// Carries out a StepPlan on the host: one prefill pass, one decode iteration. Knows slots, and
// keeps per slot what a device would: tokens, drafts, sampling state, and a page table replica.
// Owner: EngineLoop. Thread rule: engine thread.
#pragma once

#include <deque>
#include <exception>
#include <optional>
#include <vector>

#include "cache/page_table.h"
#include "foresail/log.h"
#include "scheduler/step_plan.h"
#include "speculative/iteration.h"

namespace foresail {

struct StepOutcome {
  struct Row {
    SlotId slot;
    RequestId request;
    bool verified = false;  // a row of the decode iteration
    bool failed = false;    // this request only
    IterationResult result;
  };
  bool failed = false;    // nothing of the step counts
  std::vector<Row> rows;  // the last chunks in the order of the plan, then its decode rows
};

class StepExecutor {
 public:
  StepExecutor(Iteration& iteration, int32_t slots, int32_t columns, LogCallback log);

  // The slot's state begins anew; before the step whose first chunk is in the slot.
  void start(SlotId slot, RequestState state);
  // Nothing may be under way.
  StepOutcome run(const StepPlan& plan);

  // The same in two halves. A step may be launched behind one that is still under way, where
  // choose_order() says so; each is collected after the launch of the next at the latest. The
  // device does the waiting.
  StartOrder choose_order(const StepPlan& plan);
  // False: it failed, and so will collect(); the next step may not be launched before.
  bool launch(const StepPlan& plan);
  StepOutcome collect();  // of the one launched first

 private:
  void prefill(const StepPlan& plan, StepOutcome& outcome);
  std::vector<DecodeRequest> decode_requests(const StepPlan& plan);
  void finish(const StepPlan& plan, const Flight& flight, StepOutcome& outcome);
  void log_failure(const StepPlan& plan, const std::exception& error) const;
  const Flight* latest() const { return launched_.empty() ? nullptr : &*launched_.back().flight; }

  Iteration& iteration_;
  LogCallback log_;
  PageTable table_;
  std::vector<RequestState> slots_;
  struct Launched {
    StepPlan plan;
    std::optional<Flight> flight;  // none: it failed
  };
  std::deque<Launched> launched_;
};

}  // namespace foresail
