// What one step does: at most one prefill pass and one decode iteration, named by slots.
// A plain value: made by the scheduler, carried out by the executor, broadcast to other ranks.
// Any thread.
#pragma once

#include <vector>

#include "cache/page_pool.h"
#include "cache/page_table.h"

namespace foresail {

// Tokens [begin, end) of a prompt, or of prompt and output when a request resumes.
struct PrefillChunk {
  static constexpr int32_t kSampled = -1;

  SlotId slot;
  RequestId request;
  Tokens begin;  // cached before: KV length of the slot when the chunk starts
  Tokens end;
  int64_t tokens_offset = 0;  // into StepPlan::prefill_tokens, end - begin of them
  // The token at position `end`, which the drafter's shifted input ends with: kSampled only in the
  // last chunk, whose last row is sampled.
  int32_t next_token = kSampled;
  int32_t next_draft_len = 0;  // drafts to propose after the last chunk
  bool first = false;          // the slot is this request's from here on: its state starts anew

  bool is_last() const { return next_token == kSampled; }
};

// One iteration of a running request: verify draft_len drafts, accept, then draft for the next.
struct DecodeRow {
  SlotId slot;
  RequestId request;
  Tokens kv_len_upper;         // the true length is on the device and no greater
  int32_t draft_len = 0;       // K: K + 1 rows are verified
  int32_t next_draft_len = 0;  // drafts to propose for the next iteration
};

// For usage figures; the executor goes by PrefillChunk::first.
struct Admission {
  RequestId request;
  SlotId slot;
  Tokens reused;         // prefix positions found in the cache
  bool resumed = false;  // after a retraction: not a cache hit for any counter
};

struct StepPlan {
  DeviceEpoch step = 0;
  std::vector<Admission> admitted;
  std::vector<RowUpdate> page_updates;  // to apply, in order, before the passes
  std::vector<PrefillChunk> prefill;
  std::vector<int32_t> prefill_tokens;
  std::vector<DecodeRow> decode;
  int32_t decode_bucket = 0;  // rows of the decode iteration, padding included

  // Nothing to carry out: such a plan is not completed, and the engine waits for results instead.
  // It may name admissions; its page updates come with the next plan.
  bool empty() const { return prefill.empty() && decode.empty(); }
  int32_t draft_len() const;  // the widest row
};

// Batch sizes that a graph is captured for: 1, 2, 4, 8, then every eighth.
constexpr int32_t decode_bucket_for(int32_t rows) {
  if (rows > 8) return round_up(rows, 8);
  return rows > 4 ? 8 : rows > 2 ? 4 : rows;
}

inline int32_t StepPlan::draft_len() const {
  int32_t widest = 0;
  for (const DecodeRow& row : decode) widest = std::max(widest, row.draft_len);
  return widest;
}

}  // namespace foresail
