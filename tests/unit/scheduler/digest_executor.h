// A device that computes digests instead of numbers: every cached position holds a hash of
// (namespace, position, tokens so far), and every pass checks all positions it would attend to.
// Owned by a test; carries out plans in order on its own replica of the page table.
// One thread.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "scheduler/scheduler.h"

namespace foresail {

// A request's whole future, computed before it runs.
struct VirtualStream {
  static constexpr int32_t kStop = 0;

  VirtualStream(const std::string& cache_salt, std::vector<int32_t> prompt, Tokens max_new_tokens,
                int32_t vocab);

  std::vector<int32_t> tokens;   // prompt, output, and what a device would go on to write
  std::vector<uint64_t> target;  // [p]: digest of tokens up to p
  std::vector<uint64_t> draft;   // [p]: digest of tokens up to p + 1
  Tokens prompt_len;
  Tokens end;  // prompt and the output that the user gets
};

class DigestExecutor {
 public:
  // kv_drafter: a drafter with KV of its own runs along.
  DigestExecutor(const KvCache& cache, bool kv_drafter, uint64_t seed);

  void add(RequestId id, VirtualStream stream) { streams_.emplace(id, std::move(stream)); }
  void forget(RequestId id) { streams_.erase(id); }
  const VirtualStream& stream(RequestId id) const { return streams_.at(id); }

  // One row per sampled row of the plan, tokens as the model gave them, not cut at any stop.
  // lagged: the step before was not completed when this plan was made.
  // Throws std::runtime_error naming request, position and slot when anything read is not right.
  StepResult run(const StepPlan& plan, bool lagged);

  double accept_rate = 0.6;  // chance of each draft in turn

 private:
  struct Slot {
    RequestId request;
    int64_t kv_len = 0;
  };
  int32_t page_at(SlotId slot, int64_t position) const;
  void write(std::vector<uint64_t>& pool, SlotId slot, int64_t position, uint64_t digest);
  void verify(SlotId slot, int64_t length, const VirtualStream& stream) const;
  void run_chunk(const StepPlan& plan, const PrefillChunk& chunk, StepResult& result);
  void run_decode(const DecodeRow& row, StepResult& result);
  // The rows of a draft loop that starts at the slot's length.
  void draft(SlotId slot, int32_t next_draft_len);
  void use_pages(SlotId slot, int64_t length);
  uint64_t random();
  [[noreturn]] void fail(SlotId slot, int64_t position, const std::string& what) const;

  PageTable table_;
  Capacity capacity_;
  int32_t page_size_;
  int32_t pages_;
  bool kv_drafter_;
  std::vector<uint64_t> target_;  // [pages, page_size]
  std::vector<uint64_t> draft_;   // [pages, page_size]
  std::vector<Slot> slots_;
  std::unordered_map<RequestId, VirtualStream> streams_;
  std::vector<std::pair<DeviceEpoch, RequestId>> last_user_;  // [pages]
  DeviceEpoch step_ = 0;
  DeviceEpoch step_before_ = 0;
  bool lagged_ = false;
  uint64_t rng_;
};

}  // namespace foresail
