// Which request does what in which step: admission, chunked prefill, decode, retraction.
// Owned by the engine; owns the requests and the KvCache. Knows token ids and counts only.
// Engine thread only.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "base/result.h"
#include "cache/kv_cache.h"
#include "cache/ledger.h"
#include "scheduler/request_queue.h"
#include "scheduler/step_plan.h"
#include "scheduler/step_result.h"

namespace foresail {

struct SchedulerConfig {
  KvCacheConfig cache;
  Tokens chunk_tokens{2048};  // of one prefill pass
  Tokens step_tokens{8192};   // of a whole step; decode rows count first, prefill keeps one page
  // Tests. A seed shuffles every choice that must not matter: slots, row order, whom to retract.
  uint64_t schedule_seed = 0;
  int32_t retract_every = 0;  // steps between forced retractions, 0: none
};

// Who has a page: the slot of a running request, or one of these.
enum PageHolder : int16_t {
  kFreePage = -1,
  kDepartingPage = -2,  // let go, a step under way may still read it
  kCachedPage = -3,     // in the prefix cache
  kSharedPage = -4,     // likewise, and read by running requests
};

// Counters only grow, and only by what was really admitted or committed.
struct SchedulerStats {
  int64_t waiting = 0;
  int64_t running = 0;
  int64_t submitted = 0;
  int64_t refused = 0;
  int64_t finished = 0;
  int64_t failed = 0;
  int64_t aborted = 0;
  int64_t retractions = 0;
  int64_t stalls = 0;  // turns a running request sat out for want of pages
  int64_t steps = 0;
  Tokens committed;
  Tokens prefix_queried;  // prompt tokens of admitted requests, each request once
  Tokens prefix_hit;
  Ledger pages;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  // A request that can never run is refused here, with the numbers.
  Result<RequestId> submit(RequestSpec spec);
  // In whatever state it is. False when it is not here, or not any more.
  bool abort(RequestId id);

  // May be called with one step planned and not completed: lengths are then upper bounds.
  // draft_len: how many drafts this step should propose per request; it verifies what the one
  // before proposed.
  StepPlan plan_step(int32_t draft_len);
  // In the order of the plans.
  void complete(const StepResult& result);

  int32_t running_count() const { return static_cast<int32_t>(running_.size()); }
  bool idle() const { return requests_.empty() && outstanding_.empty(); }
  SchedulerStats stats() const;
  // Of every usable page, in the order of their ids: who has it.
  std::vector<int16_t> page_holders() const;
  const Capacity& capacity() const { return cache_.capacity(); }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }

 private:
  struct Outstanding {
    DeviceEpoch step;
    std::vector<PrefillChunk> prefill;
    std::vector<DecodeRow> decode;
  };

  // Planning (scheduler_plan.cc).
  void force_retraction(DeviceEpoch step);
  void admit(StepPlan& plan);
  bool admit_front(StepPlan& plan);
  void assign_chunks(DeviceEpoch step);
  bool secure_pages(Sequence& request, Tokens reach, size_t rank);
  void plan_chunk(Sequence& request, size_t rank, int32_t draft_len, StepPlan& plan);
  void plan_decode(Sequence& request, size_t rank, int32_t draft_len, StepPlan& plan);
  Tokens expected_reach(const Sequence& request) const;
  int32_t next_drafts(const Sequence& request, Tokens next_kv_len_upper, int32_t draft_len) const;
  uint64_t random(uint64_t bound);
  template <typename T>
  void shuffle(std::vector<T>& items);

  // Life cycle (scheduler.cc).
  Sequence* find(RequestId id);
  void settle_chunk(const PrefillChunk& chunk, const RowResult* row,
                    std::span<const int32_t> tokens);
  void settle_decode(const DecodeRow& planned, const RowResult* row,
                     std::span<const int32_t> tokens);
  bool commit(Sequence& request, const RowResult& row, std::span<const int32_t> tokens);
  void retract(Sequence& request);
  void remove(Sequence& request);
  void release(Sequence& request);
  Ledger ledger() const;
  void check_ledger() const;

  SchedulerConfig config_;
  KvCache cache_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> requests_;
  RequestQueue queue_;
  std::vector<Sequence*> running_;  // in the order of RunsBefore
  std::vector<SlotId> free_slots_;
  std::deque<Outstanding> outstanding_;
  SchedulerStats stats_;
  int64_t next_id_ = 1;
  uint64_t rng_;
  // The head of the queue did not fit with this much room: not worth a look until there is more.
  RequestId blocked_;
  Pages blocked_room_;
};

}  // namespace foresail
