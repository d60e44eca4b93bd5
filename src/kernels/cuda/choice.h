// Tokens from logits, drafts against them, and what follows from that for the passes behind. The
// arithmetic is that of kernels/token_choice.h and token_terms.h: a token is the host's, bit for
// bit. Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA
// graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/token_choice.h"
#include "kernels/token_terms.h"

namespace foresail::cuda {

// What changes the logits of rows, or nothing.
struct TermArgs {
  const DrawTerms* rows = nullptr;  // [rows]; null: nothing
  TokenTerms* table = nullptr;      // [requests, cols]
  const uint64_t* masks = nullptr;  // [masks, mask_words(cols)]
  const int32_t* fed = nullptr;     // [T] token ids of the pass
};

struct ChoiceArgs {
  const float* logits = nullptr;  // [rows, cols]
  int64_t rows = 0, cols = 0, stride = 0;
  const TokenDraw* draws = nullptr;    // [rows]
  const int32_t* token_map = nullptr;  // [cols], or null
  bool marks = false;                  // a token whose logit is not a number becomes ~token
  int32_t* tokens = nullptr;           // [rows]
  // Whether any row has top-k, top-p, or any of both and min-p: rows without are left alone.
  bool top_k = false, top_p = false, truncates = false;
  TermArgs terms;
  void* workspace = nullptr;  // choice_workspace_bytes(rows, cols)
};
size_t choice_workspace_bytes(int64_t rows, int64_t cols);
void choose_tokens(cudaStream_t stream, const ChoiceArgs& args);

// Adds what was chosen in rows that stand to the table.
void count_tokens(cudaStream_t stream, const ChoiceArgs& args);

struct AcceptArgs {
  int sequences = 0;
  const int32_t* row_begin = nullptr;  // [sequences]
  const int32_t* row_count = nullptr;
  const int32_t* pretended = nullptr;
  const int32_t* fed = nullptr;     // [T]
  const int32_t* tokens = nullptr;  // [T] as choose_tokens leaves them
  int32_t* next_tokens = nullptr;   // [T]
  int32_t* lag = nullptr;           // [sequences]
};
void accept_drafts(cudaStream_t stream, const AcceptArgs& args);

// What of a pass's words lags (PassLinks).
struct LagArgs {
  const int32_t* lag = nullptr;      // [sequences]
  bool rows_lag = false;             // otherwise the wanted rows
  const int32_t* row_lag = nullptr;  // [sequences] what all rows lag besides, or null
  int rows = 0, sequences = 0, pieces = 0;
  TokenDraw* draws = nullptr;      // [sequences]
  int32_t* wanted_rows = nullptr;  // [sequences]
  int32_t* positions = nullptr;    // [rows]
  int32_t* slots = nullptr;        // [rows]
  int32_t* visible = nullptr;      // [rows]
  const int32_t* table_row = nullptr;
  int32_t* piece_end = nullptr;  // [pieces]
  const int32_t* piece_table = nullptr;
  const int32_t* tables = nullptr;  // [sequences, table_width]
  int table_width = 0;
  int page_size = 0;
};
void apply_lag(cudaStream_t stream, const LagArgs& args);

// What a pass carries over (PassCarry). `places` gives the words; its draws are one per row, its
// lags and wanted rows are not looked at.
struct CarryArgs {
  const int32_t* from = nullptr;
  const int32_t* token_places = nullptr;  // [rows]
  const int32_t* lag_places = nullptr;    // [sequences]
  int32_t* row_lag = nullptr;             // [sequences]
  int32_t* token_ids = nullptr;           // [rows]
  LagArgs places;
};
void apply_carry(cudaStream_t stream, const CarryArgs& args);

}  // namespace foresail::cuda
