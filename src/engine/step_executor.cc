#include "engine/step_executor.h"

#include <spdlog/spdlog.h>

#include "base/check.h"

namespace foresail {

StepExecutor::StepExecutor(Iteration& iteration, int32_t slots, int32_t columns)
    : iteration_(iteration), table_(slots, columns), slots_(slots) {}

void StepExecutor::start(SlotId slot, RequestState state) {
  state.slot = slot.value;
  state.page_table = table_.row(slot).data();
  slots_[slot.value] = std::move(state);
}

StepOutcome StepExecutor::run(const StepPlan& plan) {
  StepOutcome outcome;
  table_.apply(plan.page_updates);
  try {
    prefill(plan, outcome);
    decode(plan, outcome);
  } catch (const std::exception& error) {
    spdlog::error("step {} failed: {}", plan.step, error.what());
    return {.failed = true};
  }
  return outcome;
}

void StepExecutor::prefill(const StepPlan& plan, StepOutcome& outcome) {
  if (plan.prefill.empty()) return;
  std::vector<PrefillRows> chunks;
  std::vector<RequestState*> drafting;
  for (const PrefillChunk& chunk : plan.prefill) {
    RequestState& state = slots_[chunk.slot.value];
    FORESAIL_CHECK(
        chunk.is_last() == (chunk.end.value == static_cast<int64_t>(state.tokens.size())),
        "slot {}: chunk ends at {} of {} tokens", chunk.slot.value, chunk.end.value,
        state.tokens.size());
    chunks.push_back(
        {&state, static_cast<int32_t>(chunk.begin.value), static_cast<int32_t>(chunk.end.value)});
    if (!chunk.is_last()) continue;
    state.draft_steps = chunk.next_draft_len;
    drafting.push_back(&state);
  }
  iteration_.prefill(chunks);
  iteration_.draft(drafting);
  for (const PrefillChunk& chunk : plan.prefill) {
    if (!chunk.is_last()) continue;
    RequestState& state = slots_[chunk.slot.value];
    outcome.rows.push_back({.slot = chunk.slot,
                            .request = chunk.request,
                            .failed = state.failed,
                            .result = {.new_tokens = {state.tokens.back()},
                                       .logprobs = std::move(state.logprobs),
                                       .prompt_logprobs = std::move(state.prompt_logprobs)}});
  }
}

void StepExecutor::decode(const StepPlan& plan, StepOutcome& outcome) {
  if (plan.decode.empty()) return;
  std::vector<RequestState*> running;
  std::vector<std::vector<int32_t>> drafts;
  for (const DecodeRow& row : plan.decode) {
    RequestState& state = slots_[row.slot.value];
    // A drafter may have proposed fewer, and the plan may want fewer.
    if (static_cast<int32_t>(state.drafts.size()) > row.draft_len)
      state.drafts.resize(row.draft_len);
    state.draft_steps = row.next_draft_len;
    drafts.push_back(state.drafts);  // the iteration replaces them by the next ones
    running.push_back(&state);
  }
  std::vector<IterationResult> results = iteration_.decode(running);
  for (size_t i = 0; i < results.size(); ++i) {
    const DecodeRow& row = plan.decode[i];
    outcome.rows.push_back({.slot = row.slot,
                            .request = row.request,
                            .verified = true,
                            .failed = running[i]->failed,
                            .drafts = std::move(drafts[i]),
                            .result = std::move(results[i])});
  }
}

}  // namespace foresail
