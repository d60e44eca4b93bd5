#include "unit/scheduler/scripted_engine.h"

#include <stdexcept>

namespace foresail {
namespace {

SchedulerConfig scheduler_config(const ScriptedConfig& config) {
  return {.cache = {.capacity = {.pool_pages = Pages{config.usable_pages + 1},
                                 .page_size = PageSize(config.page_size),
                                 .max_context_len = Tokens{config.max_context_len},
                                 .max_draft_len = config.max_draft_len,
                                 .drafts_from_bonus = config.drafts_from_bonus},
                    .slots = config.slots,
                    .prefix_keys = config.prefix_keys},
          .chunk_tokens = Tokens{config.chunk_tokens},
          .step_tokens = Tokens{config.step_tokens},
          .schedule_seed = config.schedule_seed,
          .retract_every = config.retract_every};
}

}  // namespace

ScriptedEngine::ScriptedEngine(const ScriptedConfig& config)
    : config_(config),
      scheduler_(scheduler_config(config)),
      executor_(scheduler_.cache(), config.kv_drafter, config.seed) {}

Result<RequestId> ScriptedEngine::submit(std::vector<int32_t> prompt, int64_t max_new_tokens,
                                         int32_t priority, const std::string& cache_salt,
                                         int32_t max_draft_len) {
  const Result<RequestId> id = scheduler_.submit({.prompt = prompt,
                                                  .max_new_tokens = Tokens{max_new_tokens},
                                                  .priority = priority,
                                                  .cache_salt = cache_salt,
                                                  .max_draft_len = max_draft_len});
  if (!id) return id;
  VirtualStream stream(cache_salt, prompt, Tokens{max_new_tokens}, config_.vocab);
  requests_[*id] = {.tokens = std::move(prompt), .end = stream.end};
  executor_.add(*id, std::move(stream));
  return id;
}

bool ScriptedEngine::abort(RequestId id) {
  const bool aborted = scheduler_.abort(id);
  if (aborted) requests_.at(id).aborted = true;
  check_invariants();
  return aborted;
}

StepPlan ScriptedEngine::step(bool lag) {
  StepPlan plan = scheduler_.plan_step(draft_len);
  if (!plan.empty()) planned_.push_back({plan, !planned_.empty()});
  check_invariants();
  while (planned_.size() > (lag && !plan.empty() ? 1 : 0)) complete_front();
  return plan;
}

void ScriptedEngine::settle() {
  while (!planned_.empty()) complete_front();
}

bool ScriptedEngine::drain(int64_t limit) {
  for (int64_t i = 0; !scheduler_.idle(); ++i) {
    if (i == limit) return false;
    step();
  }
  scheduler_.stats().pages.check_idle();
  return true;
}

void ScriptedEngine::complete_front() {
  const Planned planned = std::move(planned_.front());
  planned_.pop_front();
  const StepResult raw = executor_.run(planned.plan, planned.lagged);
  StepResult result{.step = raw.step, .failed = std::exchange(fail_next_step, false)};
  const auto each_request = [&](auto&& visit) {
    for (const PrefillChunk& chunk : planned.plan.prefill) visit(chunk.request, chunk.is_last());
    for (const DecodeRow& row : planned.plan.decode) visit(row.request, true);
  };
  if (result.failed) {
    each_request([&](RequestId id, bool) {
      if (!requests_.at(id).over()) requests_.at(id).failed = true;
    });
  } else {
    size_t row_index = 0;
    int64_t offset = 0;
    each_request([&](RequestId id, bool sampled) {
      if (!sampled) return;
      RowResult row = raw.rows.at(row_index++);
      Tracked& request = requests_.at(id);
      const int64_t given = std::exchange(row.accept_len, 0);
      if (request.over()) {
        // The row of a request that ended while the step was under way.
      } else if (fail_row_of == id) {
        row.failed = request.failed = true;
        fail_row_of.reset();
      } else {
        for (int64_t i = 0; i < given && !row.finished; ++i) {
          const int32_t token = raw.tokens.at(offset + i);
          request.tokens.push_back(token);
          result.tokens.push_back(token);
          ++row.accept_len;
          row.finished = static_cast<int64_t>(request.tokens.size()) == request.end.value;
        }
        request.finished = row.finished;
      }
      offset += given;
      result.rows.push_back(row);
    });
  }
  scheduler_.complete(result);
  check_invariants();
}

bool ScriptedEngine::complete_and_right(RequestId id) const {
  const Tracked& request = requests_.at(id);
  const std::vector<int32_t>& expected = executor_.stream(id).tokens;
  if (!request.over()) return false;
  if (request.finished && static_cast<int64_t>(request.tokens.size()) != request.end.value) {
    return false;
  }
  return std::equal(request.tokens.begin(), request.tokens.end(), expected.begin());
}

std::vector<RequestId> ScriptedEngine::live() const {
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_) {
    if (!request.over()) ids.push_back(id);
  }
  return ids;
}

void ScriptedEngine::forget_ended() {
  if (!planned_.empty()) return;
  std::erase_if(requests_, [&](const auto& entry) {
    if (!entry.second.over()) return false;
    if (!complete_and_right(entry.first)) throw std::runtime_error("wrong output");
    executor_.forget(entry.first);
    return true;
  });
}

void ScriptedEngine::check_invariants() {
  const SchedulerStats stats = scheduler_.stats();
  stats.pages.check();
  const int64_t live = static_cast<int64_t>(this->live().size());
  FORESAIL_CHECK(stats.waiting + stats.running == live, "{} waiting, {} running, {} live",
                 stats.waiting, stats.running, live);
  FORESAIL_CHECK(stats.pages.owned <= scheduler_.cache().pool().held(), "owned pages not held");
  if (++checks_ % 16 == 0) scheduler_.cache().tree().check();
}

}  // namespace foresail
