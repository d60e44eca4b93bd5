// Scheduler, cache and a DigestExecutor in one loop, with the commit an engine would do.
// Owned by a test. Checks every token and, after every step, every invariant.
// One thread.
#pragma once

#include <deque>
#include <numeric>
#include <optional>

#include "unit/scheduler/digest_executor.h"

namespace foresail {

// first, first + 1, …
inline std::vector<int32_t> prompt_of(int32_t length, int32_t first = 1) {
  std::vector<int32_t> prompt(length);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

struct ScriptedConfig {
  int32_t page_size = 16;
  int64_t usable_pages = 64;
  int64_t max_context_len = 1024;
  int32_t max_draft_len = 0;
  bool drafts_from_bonus = false;
  int32_t slots = 8;
  PrefixKeys prefix_keys = PrefixKeys::kTokens;
  bool kv_drafter = false;
  int64_t chunk_tokens = 64;
  int64_t step_tokens = 8192;
  uint64_t schedule_seed = 0;
  int32_t retract_every = 0;
  bool lag = true;            // plan the next step before the results of this one
  int32_t vocab = 1'000'000;  // small: streams meet the stop token
  uint64_t seed = 1;
};

class ScriptedEngine {
 public:
  explicit ScriptedEngine(const ScriptedConfig& config);

  Result<RequestId> submit(std::vector<int32_t> prompt, int64_t max_new_tokens,
                           int32_t priority = 0, const std::string& cache_salt = "",
                           int32_t max_draft_len = INT32_MAX);
  bool abort(RequestId id);

  // Plans a step, and completes the one before (or, without lag, this one). The plan made.
  StepPlan step() { return step(config_.lag); }
  StepPlan step(bool lag);
  // Completes every step that is under way.
  void settle();
  // Until idle; false when that takes more than `limit` steps.
  bool drain(int64_t limit = 100'000);

  bool finished(RequestId id) const { return requests_.at(id).finished; }
  bool failed(RequestId id) const { return requests_.at(id).failed; }
  // Prompt and output committed so far.
  const std::vector<int32_t>& tokens(RequestId id) const { return requests_.at(id).tokens; }
  // Every request ended or was aborted, and gave exactly its own stream.
  bool complete_and_right(RequestId id) const;
  std::vector<RequestId> live() const;
  // Forgets requests that have ended.
  void forget_ended();

  Scheduler& scheduler() { return scheduler_; }
  DigestExecutor& executor() { return executor_; }
  int32_t draft_len = INT32_MAX;
  bool fail_next_step = false;
  std::optional<RequestId> fail_row_of;

 private:
  struct Tracked {
    std::vector<int32_t> tokens;
    Tokens end;  // where the stream says that the output ends
    bool finished = false;
    bool failed = false;
    bool aborted = false;
    bool over() const { return finished || failed || aborted; }
  };
  struct Planned {
    StepPlan plan;
    bool lagged;
  };
  void complete_front();
  void check_invariants();

  ScriptedConfig config_;
  Scheduler scheduler_;
  DigestExecutor executor_;
  std::map<RequestId, Tracked> requests_;
  std::deque<Planned> planned_;
  int64_t checks_ = 0;
};

}  // namespace foresail
