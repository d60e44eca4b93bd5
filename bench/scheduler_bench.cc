// Host cost of one step: plan_step + complete, with results one step late as in the engine.
#include <benchmark/benchmark.h>

#include <deque>

#include "scheduler/scheduler.h"

namespace foresail {
namespace {

constexpr int32_t kDrafts = 3;
constexpr int64_t kPromptLen = 4000;
constexpr int64_t kContextLen = 200'000;

StepResult result_of(const StepPlan& plan) {
  StepResult result{.step = plan.step};
  for (const PrefillChunk& chunk : plan.prefill) {
    if (chunk.is_last()) result.rows.push_back({.slot = chunk.slot, .accept_len = 1});
  }
  for (const DecodeRow& row : plan.decode) {
    result.rows.push_back({.slot = row.slot, .accept_len = 1 + row.draft_len});
  }
  for (const RowResult& row : result.rows)
    result.tokens.resize(result.tokens.size() + row.accept_len, 7);
  return result;
}

class Loop {
 public:
  // Page pools for everything: the steady state, no retraction.
  Loop(int32_t batch, int64_t prompt_len, PrefixKeys keys)
      : scheduler_({.cache = {.capacity = {.pool_pages = Pages{batch * kContextLen / 64 + 64},
                                           .page_size = PageSize(64),
                                           .max_context_len = Tokens{kContextLen},
                                           .max_draft_len = kDrafts},
                              .slots = batch,
                              .prefix_keys = keys},
                    .chunk_tokens = Tokens{8192}}) {
    for (int32_t i = 0; i < batch; ++i) {
      std::vector<int32_t> prompt(prompt_len, i + 1);
      const auto id = scheduler_.submit(
          {.prompt = std::move(prompt), .max_new_tokens = Tokens{kContextLen - prompt_len}});
      FORESAIL_CHECK(id.has_value(), "{}", id.error().message);
    }
    while (scheduler_.stats().waiting > 0 || planned_.empty() ||
           planned_.back().decode.size() < static_cast<size_t>(batch)) {
      step();
    }
  }

  void step() {
    planned_.push_back(scheduler_.plan_step(kDrafts));
    if (planned_.size() > 1) {
      scheduler_.complete(result_of(planned_.front()));
      planned_.pop_front();
    }
  }
  int64_t committed() const { return scheduler_.stats().committed.value; }

 private:
  Scheduler scheduler_;
  std::deque<StepPlan> planned_;
};

// A run of steps short enough that no request reaches its end.
constexpr int64_t kStepsPerLoop = (kContextLen - kPromptLen) / (kDrafts + 1) / 2;

void BM_PlanAndComplete(benchmark::State& state) {
  const int32_t batch = static_cast<int32_t>(state.range(0));
  auto loop = std::make_unique<Loop>(batch, kPromptLen, PrefixKeys::kPairs);
  int64_t steps = 0;
  for (auto _ : state) {
    loop->step();
    if (++steps % kStepsPerLoop == 0) {
      state.PauseTiming();
      loop = std::make_unique<Loop>(batch, kPromptLen, PrefixKeys::kPairs);
      state.ResumeTiming();
    }
  }
  state.counters["tokens_per_step"] = batch * (kDrafts + 1);
}
BENCHMARK(BM_PlanAndComplete)->Arg(1)->Arg(64)->Unit(benchmark::kMicrosecond);

// Admission of a prompt whose prefix is cached: the match is paid once per request.
void BM_AdmitCachedPrompt(benchmark::State& state) {
  const int64_t prompt_len = state.range(0);
  Scheduler scheduler({.cache = {.capacity = {.pool_pages = Pages{4096},
                                              .page_size = PageSize(64),
                                              .max_context_len = Tokens{kContextLen},
                                              .max_draft_len = kDrafts},
                                 .slots = 1},
                       .chunk_tokens = Tokens{kContextLen}});
  for (auto _ : state) {
    std::vector<int32_t> prompt(prompt_len, 1);
    benchmark::DoNotOptimize(
        scheduler.submit({.prompt = std::move(prompt), .max_new_tokens = Tokens{1}}));
    scheduler.complete(result_of(scheduler.plan_step(0)));
  }
}
BENCHMARK(BM_AdmitCachedPrompt)->Arg(1000)->Arg(80'000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace foresail
