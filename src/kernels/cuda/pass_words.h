// What the host decides about a pass, laid out as one run of 32-bit words for one upload, and the
// calls of the tensor-core attention kernel that follow from it. Plain arithmetic, no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_set.h"

namespace foresail::cuda {

// Query rows of one request in one call of the tensor-core kernel, at most.
constexpr int32_t kMostQueryRows = 64;

// Pieces of requests that one call serves: `batch` pieces of `q_len` rows each, one after the other
// from row `row_begin`; their ends and tables are those from `first_piece` on.
struct AttentionRun {
  int32_t row_begin = 0;
  int32_t q_len = 0;
  int32_t batch = 0;
  int32_t first_piece = 0;
  bool operator==(const AttentionRun&) const = default;
};

struct PassWords {
  std::vector<int32_t> words;
  // Where the parts begin in `words`.
  int64_t token_ids = 0, positions = 0, slots = 0, row_scale = 0, wanted_rows = 0;
  int64_t visible = 0;      // [T] keys that a row sees; 0: padding
  int64_t table_row = 0;    // [T] row of tables: the sequence that a row belongs to
  int64_t piece_end = 0;    // [pieces] keys visible to the last row of a piece
  int64_t piece_table = 0;  // [pieces] row of tables
  int64_t tables = 0;       // [sequences, table_width] pages
  int64_t draws = 0;        // [wanted rows] TokenDraw, eight-byte aligned
  int64_t terms = 0;        // [wanted rows] DrawTerms, where they are asked for
  // For accept_drafts, where it is asked for: [sequences] each.
  int64_t pretended = 0, row_begin = 0, row_count = 0;
  int64_t carried_tokens = 0, carried_lags = 0;  // PassCarry, or nothing
  int64_t piece_count = 0;
  // Rounded up to powers of two, so that passes of growing lengths keep their layout.
  int32_t table_width = 0;
  int32_t most_visible = 0;  // upper bound of what a row sees; 0: no row sees a key
  std::vector<AttentionRun> runs;
};

// Replaces what `out` held; its memory is used again.
void lay_out(const PassInputs& inputs, PassWords& out);

}  // namespace foresail::cuda
