// What the host decides about one forward pass, and what it leaves to the device. Plain values.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/token_choice.h"
#include "kernels/token_terms.h"

namespace foresail {

// The rows of one request inside a batch. Row i of the request sees the keys
// [0, kv_end - row_count + 1 + i): an end-aligned causal mask. kv_end == 0: the request is padding.
struct SequenceRows {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t kv_end = 0;                   // keys visible to the last row
  const int32_t* page_table = nullptr;  // page of key j is page_table[j / page_size]
};

// What of a pass is known on the device alone when it is queued, as pointers into memory().
struct PassLinks {
  const int32_t* token_ids = nullptr;  // [T] in place of PassInputs::token_ids; null: those
  // [sequences] By how much the host was wrong about each: it assumed that all drafts stand. Null:
  // it was not. Needs one wanted row, and one draw, per sequence.
  const int32_t* lag = nullptr;
  // What lags. kRows: the one row of each sequence, its position, slot and keys, and its draw.
  // kWantedRow: the wanted row is so many rows further up, its draw at a position so much lower.
  enum class Lag { kRows, kWantedRow } lag_of = Lag::kRows;
  // [sequences] By how much all rows of a sequence, its draw included, lag besides: those of a
  // verify pass that carries. Null: they do not.
  const int32_t* row_lag = nullptr;
};

// What a verify pass takes over from one whose outcome the host does not know: it assumed that all
// rows of that one stand. Every row is wanted, and has its draw.
struct PassCarry {
  const int32_t* from = nullptr;  // in memory(); null: nothing is carried
  // [T] Where in `from` the token of a row stands; negative: it is in PassInputs::token_ids. That
  // of a sequence's first row stands as many places further up as the sequence lags.
  std::span<const int32_t> tokens;
  std::span<const int32_t> lags;  // [sequences] where in `from` the lag stands; negative: 0
  int32_t* row_lag = nullptr;     // [sequences], in memory(), receives the lags
};

// What the host decides about one forward pass, in host memory; borrowed until the next begin_pass.
struct PassInputs {
  std::span<const int32_t> token_ids;       // [T] for embed
  std::span<const int32_t> positions;       // [T]
  std::span<const int32_t> slots;           // [T] for store_latent and store_rows
  std::span<const float> row_scale;         // [T] for rotate_query, or empty
  std::span<const SequenceRows> sequences;  // for latent_attention
  std::span<const int32_t> wanted_rows;     // for gather_rows
  std::span<const TokenDraw> draws;         // [wanted_rows] for choose_tokens, or empty
  std::span<const DrawTerms> terms;         // [draws] for choose_with_terms, or empty
  std::span<const int32_t> pretended;       // [sequences] for accept_drafts, or empty
  int page_size = 0;                        // of the caches of the pass, tokens
  // What else decides the operations, as a number: passes with the same `work` and spans of the
  // same sizes ask for the same operations on the same addresses. 0: that can't be said.
  uint64_t work = 0;
  PassLinks links;
  PassCarry carry = {};
};

}  // namespace foresail
