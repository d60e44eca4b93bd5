#include "cache/capacity.h"

#include <fmt/core.h>

#include "cache/page_table.h"

namespace foresail {

Tokens Capacity::decode_reach(Tokens kv_len_upper, int32_t draft_len,
                              int32_t next_draft_len) const {
  return kv_len_upper + Tokens{draft_len + 1 + draft_rows(next_draft_len)};
}

Tokens Capacity::prefill_reach(Tokens chunk_end, int32_t next_draft_len) const {
  return chunk_end + Tokens{draft_rows(next_draft_len)};
}

// A run is the drafts and one more, behind the token at kv_len_upper; row 0 is verified anyway.
int32_t Capacity::most_draft_len(Tokens kv_len_upper, Tokens max_total_len) const {
  return static_cast<int32_t>(
      std::clamp<int64_t>((max_total_len - kv_len_upper).value - 2, 0, config_.max_draft_len));
}

int32_t Capacity::most_next_draft_len(Tokens next_kv_len_upper, Tokens max_total_len) const {
  const int64_t rows = (max_total_len - next_kv_len_upper).value;
  return static_cast<int32_t>(
      std::clamp<int64_t>(config_.drafts_from_bonus ? rows : rows + 1, 0, config_.max_draft_len));
}

Pages Capacity::worst_case(Tokens prompt_len, Tokens max_new_tokens) const {
  return pages_holding(prompt_len + max_new_tokens, config_.page_size);
}

Result<Pages> Capacity::fits(Tokens prompt_len, Tokens max_new_tokens) const {
  if (prompt_len < Tokens{1}) return input_error("the prompt has no token", "prompt");
  if (max_new_tokens < Tokens{1}) {
    return input_error(fmt::format("max_tokens {} is below 1", max_new_tokens.value), "max_tokens");
  }
  // Compared one by one, so that no sum of outside numbers can overflow.
  const Tokens context = config_.max_context_len;
  if (prompt_len > context || max_new_tokens > context - prompt_len) {
    return input_error(fmt::format("prompt of {} tokens and max_tokens {} exceed the context of {}",
                                   prompt_len.value, max_new_tokens.value, context.value),
                       prompt_len >= context ? "prompt" : "max_tokens");
  }
  const Pages needed = worst_case(prompt_len, max_new_tokens);
  if (needed > usable_pages()) {
    return input_error(
        fmt::format(
            "prompt of {} tokens and max_tokens {} need {} pages of {} tokens, the KV pool has {}",
            prompt_len.value, max_new_tokens.value, needed.value, config_.page_size.tokens(),
            usable_pages().value),
        prompt_len + Tokens{1} > max_total_len() ? "prompt" : "max_tokens");
  }
  return needed;
}

Tokens Capacity::max_total_len() const {
  const Tokens pool = tokens_in(usable_pages(), config_.page_size);
  return std::max(Tokens{0}, std::min(pool, config_.max_context_len));
}

int32_t Capacity::table_columns() const {
  return PageTable::columns_for(config_.max_context_len, config_.page_size);
}

}  // namespace foresail
