// What fits: the one answer for start-up log, /v1/models, validation and scheduler.
// Owned by the KvCache, immutable.
// Any thread.
#pragma once

#include "base/ids.h"
#include "base/result.h"

namespace foresail {

struct CapacityConfig {
  Pages pool_pages;  // the sink included
  PageSize page_size{64};
  Tokens max_context_len;     // of the model: prompt and completion
  int32_t max_draft_len = 0;  // the most drafts verified at once (K)
  // The draft loop begins with the bonus token's own row: it goes on for K rows, not K - 1.
  bool drafts_from_bonus = false;
};

class Capacity {
 public:
  explicit Capacity(const CapacityConfig& config) : config_(config) {}

  Pages usable_pages() const { return config_.pool_pages - Pages{1}; }
  PageSize page_size() const { return config_.page_size; }
  int32_t max_draft_len() const { return config_.max_draft_len; }

  // Positions below this are written by the pass, given the greatest length it may start from.
  Tokens decode_reach(Tokens kv_len_upper, int32_t draft_len, int32_t next_draft_len) const;
  Tokens prefill_reach(Tokens chunk_end, int32_t next_draft_len) const;
  // The most drafts whose run ends within prompt + max_new_tokens, and the most whose loop writes
  // no further; at least 0. So a row never needs a page beyond what its request asked for, results
  // one step late or not.
  int32_t most_draft_len(Tokens kv_len_upper, Tokens max_total_len) const;
  int32_t most_next_draft_len(Tokens next_kv_len_upper, Tokens max_total_len) const;

  Pages worst_case(Tokens prompt_len, Tokens max_new_tokens) const;
  // The worst case, or the numbers that say why the request can never run.
  Result<Pages> fits(Tokens prompt_len, Tokens max_new_tokens) const;
  // The longest prompt + completion that fits.
  Tokens max_total_len() const;
  int32_t table_columns() const;

 private:
  // Rows that a draft loop of so many drafts writes from the new length on.
  int32_t draft_rows(int32_t draft_len) const {
    return draft_len == 0 ? 0 : draft_len - (config_.drafts_from_bonus ? 0 : 1);
  }

  CapacityConfig config_;
};

}  // namespace foresail
