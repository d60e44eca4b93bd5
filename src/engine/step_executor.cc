#include "engine/step_executor.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace foresail {

StepExecutor::StepExecutor(Iteration& iteration, int32_t slots, int32_t columns, LogCallback log)
    : iteration_(iteration), log_(std::move(log)), table_(slots, columns), slots_(slots) {}

void StepExecutor::start(SlotId slot, RequestState state) {
  state.slot = slot.value;
  state.page_table = table_.row(slot).data();
  slots_[slot.value] = std::move(state);
}

StepOutcome StepExecutor::run(const StepPlan& plan) {
  FORESAIL_CHECK(launched_.empty(), "{} steps are under way", launched_.size());
  StepOutcome outcome;
  table_.apply(plan.page_updates);
  try {
    prefill(plan, outcome);
    if (plan.decode.empty()) return outcome;
    finish(plan, iteration_.start(decode_requests(plan)), outcome);
  } catch (const std::exception& error) {
    log_failure(plan, error);
    return {.failed = true};
  }
  return outcome;
}

StartOrder StepExecutor::choose_order(const StepPlan& plan) {
  // What is admitted takes over a slot that a step under way may still write to.
  if (!plan.prefill.empty() || !plan.admitted.empty()) return StartOrder::kPrefill;
  return iteration_.choose_order(decode_requests(plan), latest());
}

bool StepExecutor::launch(const StepPlan& plan) {
  table_.apply(plan.page_updates);
  Launched launched{plan, {}};
  try {
    launched.flight = iteration_.start_ahead(decode_requests(plan), latest());
  } catch (const std::exception& error) {
    log_failure(plan, error);
  }
  launched_.push_back(std::move(launched));
  return launched_.back().flight.has_value();
}

StepOutcome StepExecutor::collect() {
  const Launched launched = std::move(launched_.front());
  launched_.pop_front();
  if (!launched.flight) return {.failed = true};
  StepOutcome outcome;
  try {
    finish(launched.plan, *launched.flight, outcome);
  } catch (const std::exception& error) {
    log_failure(launched.plan, error);
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

void StepExecutor::log_failure(const StepPlan& plan, const std::exception& error) const {
  write_log(log_, LogLevel::kError, "step {} failed: {}", plan.step, error.what());
}

std::vector<DecodeRequest> StepExecutor::decode_requests(const StepPlan& plan) {
  std::vector<DecodeRequest> requests;
  // A drafter may have proposed fewer, and the plan may want fewer.
  for (const DecodeRow& row : plan.decode)
    requests.push_back({&slots_[row.slot.value], row.draft_len, row.next_draft_len});
  return requests;
}

void StepExecutor::finish(const StepPlan& plan, const Flight& flight, StepOutcome& outcome) {
  std::vector<IterationResult> results = iteration_.finish(flight);
  for (size_t i = 0; i < results.size(); ++i) {
    const DecodeRow& row = plan.decode[i];
    outcome.rows.push_back({.slot = row.slot,
                            .request = row.request,
                            .verified = true,
                            .failed = flight.items[i].request->failed,
                            .result = std::move(results[i])});
  }
}

}  // namespace foresail
