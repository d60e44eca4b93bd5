// The serving loop: many requests through plan -> run -> commit, one step per call.
// Owner: the public Engine, a command or a test; the model outlives it.
// Thread rule: prepare() and grammars() from any thread, all else from the engine thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "engine/commit.h"
#include "engine/loaded_model.h"
#include "engine/output_grammars.h"
#include "engine/step_executor.h"
#include "scheduler/scheduler.h"
#include "speculative/adaptive_depth.h"

namespace foresail {

// Checked and tokenised: it fits, and nothing in it can fail later.
struct PreparedRequest {
  Request request;
  std::vector<int32_t> prompt;
};

// Receives every event of one request, with its figures so far; complete with the last event.
using EventSink = std::function<void(const Event&, const GenerationStats&)>;

class EngineLoop {
 public:
  // tokenizer may be null: then requests come and go as token ids. The model was loaded with at
  // least as many slots and draft steps. Throws Error{kUsage}.
  EngineLoop(LoadedModel& model, const Tokenizer* tokenizer, const EngineOptions& options);

  Result<PreparedRequest> prepare(Request request) const;
  const OutputGrammars& grammars() const { return grammars_; }
  // `on_admission` runs once, when it leaves the queue; may be empty.
  RequestId submit(PreparedRequest prepared, EventSink sink,
                   std::function<void(const GenerationStats&)> on_admission = {});
  // False when it has ended already. Its last event says so before this returns.
  bool abort(RequestId id, FinishReason reason = FinishReason::kAborted);

  // False when there was nothing to do.
  bool step();
  bool idle() const { return scheduler_.idle(); }
  // Lets go of every cached prefix. Precondition: idle.
  void flush_cache() { scheduler_.cache().tree().evict(Pages{INT64_MAX}); }

  EngineStats stats() const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    PreparedRequest prepared;
    EventSink sink;
    std::function<void(const GenerationStats&)> on_admission;
    Commit commit;
    std::vector<int32_t> tokens;  // prompt and committed output
    GenerationStats stats;
    Clock::time_point submitted, admitted, first_token;
  };
  // A step whose results are still to be committed.
  struct InFlight {
    StepPlan plan;
    std::optional<StepOutcome> outcome;  // none: it was launched, and is to be collected
    Clock::time_point launched = {};
  };

  void record_steps(const EngineOptions& options);
  int32_t choose_draft_len();
  void observe_time(const StepPlan& plan, double run_s);
  bool may_launch(const StepPlan& plan);
  void launch(StepPlan plan);
  void run(StepPlan plan);
  void start(const StepPlan& plan);
  // Commits the results of the oldest steps until so many are in flight.
  void settle(size_t left);
  void settle_oldest();
  RowResult commit(const StepOutcome::Row& row, std::vector<int32_t>& tokens);
  void fail_all(const StepPlan& plan);
  void end_without_token(RequestId id, FinishReason reason);
  Running* find(RequestId id);
  RequestState slot_state(const Running& running) const;

  LoadedModel& model_;
  const Tokenizer* tokenizer_;
  bool late_results_;
  bool launches_ahead_;
  bool simulates_;  // acceptance, and so commits what the model would not say
  OutputGrammars grammars_;
  std::optional<AdaptiveDepth> adaptive_depth_;
  Scheduler scheduler_;
  StepExecutor executor_;
  std::unordered_map<RequestId, std::unique_ptr<Running>> running_;
  std::deque<InFlight> in_flight_;  // at most two
  Clock::time_point last_collected_ = {};
  EngineStats totals_;
  struct {
    int64_t prompt = 0, cached = 0, output = 0;
  } probe_tokens_;  // which the scheduler counts like any other
};

}  // namespace foresail
