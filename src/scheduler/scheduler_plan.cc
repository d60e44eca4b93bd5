// The planning half of Scheduler: decides one step and books what it may write.
#include <algorithm>

#include "scheduler/prefill_budget.h"
#include "scheduler/scheduler.h"

namespace foresail {

StepPlan Scheduler::plan_step(int32_t draft_len) {
  FORESAIL_CHECK(outstanding_.size() <= 1, "{} steps await results", outstanding_.size());
  draft_len = std::clamp(draft_len, 0, capacity().max_draft_len());
  const int64_t failures = cache_.pool().failures();
  StepPlan plan;
  plan.step = cache_.pool().planned() + 1;
  force_retraction(plan.step);
  admit(plan);
  assign_chunks(plan.step);
  // In order of rank: whoever lacks pages takes them from those after it, never from those before.
  for (size_t rank = 0; rank < running_.size(); ++rank) {
    Sequence& request = *running_[rank];
    if (std::holds_alternative<Prefilling>(request.state)) {
      plan_chunk(request, rank, draft_len, plan);
    } else {
      plan_decode(request, rank, draft_len, plan);
    }
  }
  if (plan.empty()) {
    FORESAIL_CHECK(
        !outstanding_.empty() || requests_.empty() || failures != cache_.pool().failures(),
        "{} requests wait for nothing", requests_.size());
    check_ledger();
    return plan;
  }
  shuffle(plan.prefill);
  shuffle(plan.decode);
  plan.decode_bucket = decode_bucket_for(static_cast<int32_t>(plan.decode.size()));
  plan.page_updates = cache_.table().take_updates();
  cache_.pool().note_planned(plan.step);
  outstanding_.push_back({plan.step, plan.prefill, plan.decode});
  check_ledger();
  return plan;
}

// Only a request that gained a token since it was admitted, so that each still comes to its end.
void Scheduler::force_retraction(DeviceEpoch step) {
  if (config_.retract_every == 0 || step % config_.retract_every != 0) return;
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    const auto* decoding = std::get_if<Decoding>(&(*it)->state);
    if (decoding == nullptr || (*it)->length() == decoding->length_at_start) continue;
    return retract(**it);
  }
}

void Scheduler::admit(StepPlan& plan) {
  while (!queue_.empty() && !free_slots_.empty()) {
    // Results still under way belong to the history that a resumed request recomputes.
    if (queue_.front()->pending_steps > 0 || !admit_front(plan)) return;
  }
}

bool Scheduler::admit_front(StepPlan& plan) {
  Sequence& request = *queue_.front();
  Pages reserved;  // what the running ones are about to need
  for (Sequence* running : running_) {
    reserved += running->pages()->missing_for(expected_reach(*running));
  }
  const auto room = [&] { return cache_.pool().free() + cache_.tree().evictable() - reserved; };
  const Pages room_before = room();
  if (request.id == blocked_ && room_before <= blocked_room_ && !running_.empty()) return false;

  const std::span<const int32_t> cacheable =
      request.reads_prefix_cache ? request.tokens : std::span<const int32_t>();
  PrefixHit hit = cache_.tree().match(request.cache_salt, cacheable);
  const Pages needed = pages_holding(expected_reach(request) - hit.reuse(), capacity().page_size());
  if (needed > room()) {
    blocked_ = request.id;
    blocked_room_ = room_before;
    return false;
  }
  if (config_.schedule_seed != 0) {
    std::swap(free_slots_.back(), free_slots_[random(free_slots_.size())]);
  }
  const SlotId slot = free_slots_.back();
  free_slots_.pop_back();
  queue_.remove(&request);
  const bool resumed = std::holds_alternative<Retracted>(request.state);
  const Tokens reused = hit.reuse();
  request.computed = reused;
  request.become(Prefilling{.pages = SequencePages(cache_, slot, std::move(hit)),
                            .length = request.length(),
                            .planned = reused,
                            .chunk_end = reused});
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &request, RunsBefore{}),
                  &request);
  plan.admitted.push_back(
      {.request = request.id, .slot = slot, .reused = reused, .resumed = resumed});
  if (!resumed) {
    stats_.prefix_queried += request.prompt_len;
    stats_.prefix_hit += reused;
  }
  return true;
}

// Room for the prefill and the next iteration, and never more than the worst case.
Tokens Scheduler::expected_reach(const Sequence& request) const {
  const int32_t drafts = request.max_draft_len;
  const Tokens next = request.length() + request.pending_most;
  return std::min(capacity().decode_reach(next, drafts, drafts), request.max_total_len);
}

void Scheduler::assign_chunks(DeviceEpoch step) {
  std::vector<PrefillClaim> claims;
  std::vector<Prefilling*> states;
  Tokens decode_tokens;
  for (Sequence* request : running_) {
    if (auto* prefilling = std::get_if<Prefilling>(&request->state)) {
      claims.push_back({prefilling->planned, prefilling->length, request->priority});
      states.push_back(prefilling);
    } else {
      decode_tokens += Tokens{std::get<Decoding>(request->state).drafted + 1};
    }
  }
  if (claims.empty()) return;
  const PageSize page_size = capacity().page_size();
  const Tokens least = std::min(config_.chunk_tokens, Tokens{page_size.tokens()});
  const Tokens budget =
      std::clamp(config_.step_tokens - decode_tokens, least, config_.chunk_tokens);
  const bool head_first = (config_.schedule_seed != 0 ? random(2) : step % 2) == 0;
  const std::vector<Tokens> ends = split_prefill_budget(claims, budget, page_size, head_first);
  for (size_t i = 0; i < states.size(); ++i) states[i]->chunk_end = ends[i];
}

// Retracts from the back until the request has its pages, or until they are sure to come when the
// steps in flight complete. False: it sits this step out.
bool Scheduler::secure_pages(Sequence& request, Tokens reach, size_t rank) {
  while (!request.pages()->grow_to(reach)) {
    const bool enough = request.pages()->missing_for(reach) <= cache_.reclaimable();
    if (enough || rank + 1 == running_.size()) {
      ++stats_.stalls;
      return false;
    }
    const size_t last = running_.size() - 1;
    const size_t victim = config_.schedule_seed != 0 ? last - random(last - rank) : last;
    retract(*running_[victim]);
  }
  return true;
}

void Scheduler::plan_chunk(Sequence& request, size_t rank, int32_t draft_len, StepPlan& plan) {
  auto& state = std::get<Prefilling>(request.state);
  if (state.chunk_end == state.planned) return;
  const bool last = state.chunk_end == state.length;
  const int32_t next_draft_len = last ? next_drafts(request, state.chunk_end, draft_len) : 0;
  if (!secure_pages(request, capacity().prefill_reach(state.chunk_end, next_draft_len), rank)) {
    return;
  }
  plan.prefill.push_back(
      {.slot = state.pages.slot(),
       .request = request.id,
       .begin = state.planned,
       .end = state.chunk_end,
       .tokens_offset = static_cast<int64_t>(plan.prefill_tokens.size()),
       .next_token = last ? PrefillChunk::kSampled : request.tokens[state.chunk_end.value],
       .next_draft_len = next_draft_len,
       .first = !std::exchange(state.started, true)});
  plan.prefill_tokens.insert(plan.prefill_tokens.end(),
                             request.tokens.begin() + state.planned.value,
                             request.tokens.begin() + state.chunk_end.value);
  state.planned = state.chunk_end;
  ++request.pending_steps;
  if (!last) return;
  request.pending_least += Tokens{1};
  request.pending_most += Tokens{1};
  SequencePages pages = std::move(state.pages);
  request.become(Decoding{
      .pages = std::move(pages), .length_at_start = request.length(), .drafted = next_draft_len});
}

void Scheduler::plan_decode(Sequence& request, size_t rank, int32_t draft_len, StepPlan& plan) {
  auto& state = std::get<Decoding>(request.state);
  if (request.wanted() <= Tokens{0}) return;  // what is under way surely ends it
  const Tokens kv_len_upper = request.kv_len_upper();
  const int32_t verified =
      std::min(state.drafted, capacity().most_draft_len(kv_len_upper, request.max_total_len));
  const int32_t next_draft_len =
      next_drafts(request, kv_len_upper + Tokens{verified + 1}, draft_len);
  if (!secure_pages(request, capacity().decode_reach(kv_len_upper, verified, next_draft_len),
                    rank)) {
    return;
  }
  plan.decode.push_back({.slot = state.pages.slot(),
                         .request = request.id,
                         .kv_len_upper = kv_len_upper,
                         .draft_len = verified,
                         .next_draft_len = next_draft_len});
  state.drafted = next_draft_len;
  ++request.pending_steps;
  request.pending_least += Tokens{1};
  request.pending_most += Tokens{verified + 1};
}

int32_t Scheduler::next_drafts(const Sequence& request, Tokens next_kv_len_upper,
                               int32_t draft_len) const {
  return std::min({draft_len, request.max_draft_len,
                   capacity().most_next_draft_len(next_kv_len_upper, request.max_total_len)});
}

// splitmix64
uint64_t Scheduler::random(uint64_t bound) {
  uint64_t z = rng_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return (z ^ (z >> 31)) % bound;
}

template <typename T>
void Scheduler::shuffle(std::vector<T>& items) {
  if (config_.schedule_seed == 0) return;
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random(i)]);
}

}  // namespace foresail
