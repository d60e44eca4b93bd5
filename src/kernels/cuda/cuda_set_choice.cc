// The CUDA set's choice of tokens, and what the device itself puts into a pass.
#include "base/check.h"
#include "kernels/cuda/choice.h"
#include "kernels/cuda/cuda_set.h"
#include "kernels/cuda/logprobs.h"
#include "kernels/token_truncation.h"

namespace foresail {

cuda::LagArgs CudaKernels::lag_places() {
  return {.rows = static_cast<int>(inputs_.positions.size()),
          .sequences = static_cast<int>(inputs_.sequences.size()),
          .pieces = static_cast<int>(pass_.piece_count),
          .draws = reinterpret_cast<TokenDraw*>(device_words_ + pass_.draws),
          .wanted_rows = device_words_ + pass_.wanted_rows,
          .positions = device_words_ + pass_.positions,
          .slots = device_words_ + pass_.slots,
          .visible = device_words_ + pass_.visible,
          .table_row = word(pass_.table_row),
          .piece_end = device_words_ + pass_.piece_end,
          .piece_table = word(pass_.piece_table),
          .tables = word(pass_.tables),
          .table_width = pass_.table_width,
          .page_size = inputs_.page_size};
}

void CudaKernels::apply_links() {
  const PassLinks& links = inputs_.links;
  if (links.lag == nullptr) return;
  const bool rows_lag = links.lag_of == PassLinks::Lag::kRows;
  FORESAIL_CHECK(inputs_.wanted_rows.size() == inputs_.sequences.size() &&
                     inputs_.draws.size() == inputs_.sequences.size() &&
                     (!rows_lag || inputs_.positions.size() == inputs_.sequences.size()) &&
                     inputs_.row_scale.empty(),
                 "{} rows, {} wanted, {} draws of {} sequences that lag", inputs_.positions.size(),
                 inputs_.wanted_rows.size(), inputs_.draws.size(), inputs_.sequences.size());
  cuda::LagArgs args = lag_places();
  args.lag = links.lag;
  args.rows_lag = rows_lag;
  args.row_lag = links.row_lag;
  cuda::apply_lag(stream(), args);
  check("what lags in a pass");
}

void CudaKernels::apply_carry() {
  const PassCarry& carry = inputs_.carry;
  if (carry.from == nullptr) return;
  const size_t rows = inputs_.positions.size();
  FORESAIL_CHECK(carry.tokens.size() == rows && inputs_.draws.size() == rows &&
                     inputs_.wanted_rows.size() == rows &&
                     carry.lags.size() == inputs_.sequences.size() && inputs_.row_scale.empty(),
                 "{} rows, {} wanted, {} draws, {} tokens and {} lags of {} sequences carried",
                 rows, inputs_.wanted_rows.size(), inputs_.draws.size(), carry.tokens.size(),
                 carry.lags.size(), inputs_.sequences.size());
  cuda::apply_carry(stream(), {.from = carry.from,
                               .token_places = word(pass_.carried_tokens),
                               .lag_places = word(pass_.carried_lags),
                               .row_lag = carry.row_lag,
                               .token_ids = device_words_ + pass_.token_ids,
                               .places = lag_places()});
  check("what a pass carries");
}

const int32_t* CudaKernels::fed_tokens(std::span<const int32_t> ids) const {
  const int32_t* words = pass_words(ids.data(), inputs_.token_ids, pass_.token_ids, "token ids");
  return inputs_.links.token_ids != nullptr ? inputs_.links.token_ids : words;
}

cuda::ChoiceArgs CudaKernels::choice_args(const MatrixView& logits,
                                          std::span<const TokenDraw> draws, int32_t* tokens) {
  FORESAIL_CHECK(draws.data() == inputs_.draws.data(), "draws are not those of begin_pass");
  const Truncation truncation = truncation_of(draws);
  return {.logits = static_cast<const float*>(logits.data),
          .rows = logits.rows,
          .cols = logits.cols,
          .stride = logits.stride,
          .draws = reinterpret_cast<const TokenDraw*>(word(pass_.draws)),
          .tokens = tokens,
          .top_k = truncation.top_k,
          .top_p = truncation.top_p,
          .truncates = truncation.any(),
          .workspace =
              scratch(Scratch::kChoice, cuda::choice_workspace_bytes(logits.rows, logits.cols))};
}

void CudaKernels::choose_tokens(const MatrixView& logits, std::span<const TokenDraw> draws,
                                const int32_t* token_map, bool marks, int32_t* tokens) {
  cuda::ChoiceArgs args = choice_args(logits, draws, tokens);
  args.token_map = token_map;
  args.marks = marks;
  cuda::choose_tokens(stream(), args);
  check("choose_tokens");
}

void CudaKernels::choose_with_terms(const MatrixView& logits, std::span<const TokenDraw> draws,
                                    const ChoiceTerms& terms, int32_t* tokens) {
  FORESAIL_CHECK(terms.rows.data() == inputs_.terms.data() && terms.rows.size() == draws.size(),
                 "terms are not those of begin_pass");
  const TermKinds kinds = kinds_of(terms.rows);
  const cuda::TermArgs term_args = {.rows = reinterpret_cast<const DrawTerms*>(word(pass_.terms)),
                                    .table = terms.table,
                                    .masks = terms.masks,
                                    .fed = fed_tokens(terms.token_ids)};
  cuda::ChoiceArgs args = choice_args(logits, draws, tokens);
  args.marks = true;
  if (kinds.changes()) args.terms = term_args;
  cuda::choose_tokens(stream(), args);
  args.terms = term_args;
  if (kinds.table) cuda::count_tokens(stream(), args);
  if (kinds.logprobs)
    cuda::row_logprobs(
        stream(), args,
        scratch(Scratch::kLogprobs, cuda::logprob_workspace_bytes(logits.rows, logits.cols)),
        terms.logprobs);
  check("choose_with_terms");
}

void CudaKernels::accept_drafts(const int32_t* tokens, std::span<const int32_t> token_ids,
                                std::span<const SequenceRows> sequences,
                                std::span<const int32_t> pretended, int32_t* next_tokens,
                                int32_t* lag) {
  FORESAIL_CHECK(sequences.data() == inputs_.sequences.data() &&
                     pretended.data() == inputs_.pretended.data() &&
                     pretended.size() == sequences.size(),
                 "sequences or pretended drafts are not those of begin_pass");
  cuda::accept_drafts(stream(), {.sequences = static_cast<int>(sequences.size()),
                                 .row_begin = word(pass_.row_begin),
                                 .row_count = word(pass_.row_count),
                                 .pretended = word(pass_.pretended),
                                 .fed = fed_tokens(token_ids),
                                 .tokens = tokens,
                                 .next_tokens = next_tokens,
                                 .lag = lag});
  check("accept_drafts");
}

}  // namespace foresail
