#include "scheduler/scheduler.h"

#include <algorithm>

namespace foresail {

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config), cache_(config.cache), rng_(config.schedule_seed) {
  if (config.chunk_tokens < Tokens{1}) {
    throw_error(ErrorCode::kUsage, "options.chunked_prefill_size {}: need at least 1",
                config.chunk_tokens.value);
  }
  if (config.cache.slots < 1) {
    throw_error(ErrorCode::kUsage, "options.max_running_requests {}: need at least 1",
                config.cache.slots);
  }
  for (int32_t slot = config.cache.slots - 1; slot >= 0; --slot) {
    free_slots_.push_back(SlotId{slot});
  }
}

Result<RequestId> Scheduler::submit(RequestSpec spec) {
  const Tokens prompt_len{static_cast<int64_t>(spec.prompt.size())};
  const Result<Pages> fits = capacity().fits(prompt_len, spec.max_new_tokens);
  if (!fits) {
    ++stats_.refused;
    return tl::unexpected(fits.error());
  }
  auto request = std::make_unique<Sequence>();
  request->id = RequestId{next_id_++};
  request->priority = spec.priority;
  request->cache_salt = std::move(spec.cache_salt);
  request->reads_prefix_cache = spec.reads_prefix_cache;
  request->max_draft_len = std::clamp(spec.max_draft_len, 0, capacity().max_draft_len());
  request->tokens = std::move(spec.prompt);
  request->prompt_len = prompt_len;
  request->max_total_len = prompt_len + spec.max_new_tokens;
  const RequestId id = request->id;
  queue_.push(request.get());
  requests_.emplace(id, std::move(request));
  ++stats_.submitted;
  return id;
}

bool Scheduler::abort(RequestId id) {
  Sequence* request = find(id);
  if (request == nullptr) return false;
  remove(*request);
  ++stats_.aborted;
  check_ledger();
  return true;
}

void Scheduler::complete(const StepResult& result) {
  FORESAIL_CHECK(!outstanding_.empty(), "step {} was not planned", result.step);
  const Outstanding step = std::move(outstanding_.front());
  outstanding_.pop_front();
  FORESAIL_CHECK(result.step == step.step, "results of step {}, expected {}", result.step,
                 step.step);
  cache_.pool().note_completed(step.step);
  ++stats_.steps;

  size_t next_row = 0;
  std::span<const int32_t> tokens = result.tokens;
  const auto take = [&](SlotId slot) -> std::pair<const RowResult*, std::span<const int32_t>> {
    if (result.failed) return {nullptr, {}};
    FORESAIL_CHECK(next_row < result.rows.size(), "step {}: {} rows", step.step, next_row);
    const RowResult& row = result.rows[next_row++];
    FORESAIL_CHECK(row.slot == slot, "step {}: slot {} for {}", step.step, row.slot.value,
                   slot.value);
    FORESAIL_CHECK(static_cast<size_t>(row.accept_len) <= tokens.size(), "step {}: {} tokens of {}",
                   step.step, row.accept_len, tokens.size());
    const auto own = tokens.first(row.accept_len);
    tokens = tokens.subspan(row.accept_len);
    return {row.failed ? nullptr : &row, own};
  };
  static constexpr RowResult kNoRow{};
  for (const PrefillChunk& chunk : step.prefill) {
    if (chunk.is_last()) {
      const auto [row, own] = take(chunk.slot);
      settle_chunk(chunk, row, own);
    } else {
      settle_chunk(chunk, result.failed ? nullptr : &kNoRow, {});
    }
  }
  for (const DecodeRow& planned : step.decode) {
    const auto [row, own] = take(planned.slot);
    settle_decode(planned, row, own);
  }
  FORESAIL_CHECK(result.failed || (next_row == result.rows.size() && tokens.empty()),
                 "step {}: {} rows and {} tokens too many", step.step,
                 result.rows.size() - next_row, tokens.size());
  check_ledger();
}

// row: null when the step or the row failed.
void Scheduler::settle_chunk(const PrefillChunk& chunk, const RowResult* row,
                             std::span<const int32_t> tokens) {
  Sequence* request = find(chunk.request);
  if (request == nullptr) return;  // ended while the step ran
  --request->pending_steps;
  if (chunk.is_last()) {
    request->pending_least -= Tokens{1};
    request->pending_most -= Tokens{1};
  }
  if (row == nullptr) {
    ++stats_.failed;
    return remove(*request);
  }
  if (request->pages() != nullptr) request->computed = chunk.end;
  if (chunk.is_last() && !commit(*request, *row, tokens)) return;
  if (SequencePages* pages = request->pages()) {
    pages->publish(request->tokens, request->computed, cache_.pool().completed());
  }
}

void Scheduler::settle_decode(const DecodeRow& planned, const RowResult* row,
                              std::span<const int32_t> tokens) {
  Sequence* request = find(planned.request);
  if (request == nullptr) return;
  --request->pending_steps;
  request->pending_least -= Tokens{1};
  request->pending_most -= Tokens{planned.draft_len + 1};
  if (row == nullptr) {
    ++stats_.failed;
    return remove(*request);
  }
  FORESAIL_CHECK(row->accept_len <= planned.draft_len + 1, "request {}: {} tokens of {} drafts",
                 request->id.value, row->accept_len, planned.draft_len);
  // The run's last token has no KV yet; all before it were verified, so their KV is right.
  if (request->pages() != nullptr) {
    request->computed = request->length() + Tokens{row->accept_len - 1};
  }
  commit(*request, *row, tokens);
}

// False when the request has ended.
bool Scheduler::commit(Sequence& request, const RowResult& row, std::span<const int32_t> tokens) {
  FORESAIL_CHECK(row.accept_len >= 1, "request {}: a step without a token", request.id.value);
  request.tokens.insert(request.tokens.end(), tokens.begin(), tokens.end());
  stats_.committed += Tokens{row.accept_len};
  FORESAIL_CHECK(request.length() <= request.max_total_len, "request {}: {} tokens, limit {}",
                 request.id.value, request.length().value, request.max_total_len.value);
  if (!row.finished && request.length() < request.max_total_len) return true;
  ++stats_.finished;
  remove(request);
  return false;
}

void Scheduler::retract(Sequence& request) {
  release(request);
  request.become(Retracted{});
  request.computed = Tokens{0};
  queue_.push(&request);
  ++stats_.retractions;
}

void Scheduler::remove(Sequence& request) {
  if (!queue_.remove(&request)) release(request);
  request.become(Finished{});
  requests_.erase(request.id);
}

// Gives slot and pages back; what completed steps have computed stays in the prefix tree.
void Scheduler::release(Sequence& request) {
  SequencePages& pages = *request.pages();
  pages.publish(request.tokens, request.computed, cache_.pool().completed());
  free_slots_.push_back(pages.slot());
  std::erase(running_, &request);
}

Sequence* Scheduler::find(RequestId id) {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : it->second.get();
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.waiting = queue_.size();
  stats.running = static_cast<int64_t>(running_.size());
  stats.pages = ledger();
  return stats;
}

std::vector<int16_t> Scheduler::page_holders() const {
  const PagePool& pool = cache_.pool();
  std::vector<int16_t> holders(static_cast<size_t>(pool.usable().value), kDepartingPage);
  const auto holder = [&](PageId page) -> int16_t& { return holders[page.value - 1]; };  // 0: sink
  for (size_t i = 0; i < holders.size(); ++i)
    if (pool.is_free(PageId{static_cast<int32_t>(i) + 1})) holders[i] = kFreePage;
  cache_.tree().for_each_page(
      [&](PageId page, bool locked) { holder(page) = locked ? kSharedPage : kCachedPage; });
  for (Sequence* request : running_)
    for (const PageRef& page : request->pages()->own_pages())
      holder(page.id()) = static_cast<int16_t>(request->pages()->slot().value);
  return holders;
}

Ledger Scheduler::ledger() const {
  Ledger ledger{.free = cache_.pool().free(),
                .cached = cache_.tree().size(),
                .in_flight = cache_.pool().in_flight(),
                .total = cache_.pool().usable()};
  for (Sequence* request : running_) ledger.owned += request->pages()->owned();
  return ledger;
}

void Scheduler::check_ledger() const {
  if (idle()) {
    ledger().check_idle();
  } else {
#ifndef NDEBUG
    ledger().check();
#endif
  }
}

}  // namespace foresail
