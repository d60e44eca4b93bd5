// How a set that leaves it to the host chooses tokens, accepts drafts and counts what was chosen.
#include <cmath>
#include <vector>

#include "kernels/drawable_tokens.h"
#include "kernels/kernel_set.h"
#include "kernels/token_logprobs.h"

namespace foresail {
namespace {

std::span<const float> logits_of(const MatrixView& logits, int64_t row) {
  return {static_cast<const float*>(logits.data) + row * logits.stride,
          static_cast<size_t>(logits.cols)};
}

int32_t choose(std::span<const float> logits, const TokenDraw& draw, const int32_t* token_map,
               bool marks) {
  const int32_t winner = draw_token(logits, draw, token_map);
  const int32_t token = token_map == nullptr ? winner : token_map[winner];
  return marks && std::isnan(logits[winner]) ? ~token : token;
}

RowLogprobs logprobs_of(std::span<const float> logits, int32_t token, int32_t top_count) {
  RowLogprobs result = {};
  const double log_sum = log_sum_of(logits);
  result.chosen = logprob_of(logits[token], log_sum);
  const std::vector<int32_t> best = best_tokens(logits, top_count);
  for (size_t i = 0; i < best.size(); ++i) {
    result.ids[i] = best[i];
    result.values[i] = logprob_of(logits[best[i]], log_sum);
  }
  return result;
}

}  // namespace

void KernelSet::choose_tokens(const MatrixView& logits, std::span<const TokenDraw> draws,
                              const int32_t* token_map, bool marks, int32_t* tokens) {
  for (size_t row = 0; row < draws.size(); ++row)
    tokens[row] =
        choose(logits_of(logits, static_cast<int64_t>(row)), draws[row], token_map, marks);
}

void KernelSet::choose_with_terms(const MatrixView& logits, std::span<const TokenDraw> draws,
                                  const ChoiceTerms& terms, int32_t* tokens) {
  const int32_t* fed = terms.token_ids.data();
  std::vector<float> changed;
  for (size_t row = 0; row < draws.size(); ++row) {
    const DrawTerms& of_row = terms.rows[row];
    const std::span<const float> values = logits_of(logits, static_cast<int64_t>(row));
    changed.assign(values.begin(), values.end());
    if (of_row.table_row >= 0) {
      const TokenTerms* table = terms.table + of_row.table_row * logits.cols;
      const int32_t* drafts = of_row.row == 0 ? nullptr : fed + row - of_row.row + 1;
      for (int32_t i = 0; i < static_cast<int32_t>(changed.size()); ++i)
        changed[i] = changed_logit(values[i], i, table[i], of_row, drafts, draws[row].position);
    }
    if (of_row.mask >= 0) {
      const uint64_t* mask = terms.masks + of_row.mask * mask_words(logits.cols);
      for (int64_t i = 0; i < logits.cols; ++i)
        if (!allows(mask, i)) changed[i] = -std::numeric_limits<float>::infinity();
    }
    tokens[row] = choose(changed, draws[row], nullptr, true);
  }
  for (size_t row = 0; row < draws.size(); ++row) {
    const DrawTerms& of_row = terms.rows[row];
    const size_t first = row - static_cast<size_t>(of_row.row);
    const int32_t token = token_to_count(of_row, fed + first, tokens + first);
    if (token < 0) continue;
    if (of_row.table_row >= 0)
      terms.table[of_row.table_row * logits.cols + token].seen += TokenTerms::kOutput;
    if (of_row.top_count >= 0)
      terms.logprobs[row] =
          logprobs_of(logits_of(logits, static_cast<int64_t>(row)), token, of_row.top_count);
  }
}

void KernelSet::accept_drafts(const int32_t* tokens, std::span<const int32_t> token_ids,
                              std::span<const SequenceRows> sequences,
                              std::span<const int32_t> pretended, int32_t* next_tokens,
                              int32_t* lag) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int32_t begin = sequences[s].row_begin;
    const int32_t count = sequences[s].row_count;
    const int32_t* fed = token_ids.data() + begin;
    lag[s] = count - accept_rows(fed, tokens + begin, count, pretended[s]);
    for (int32_t row = 0; row < count; ++row)
      next_tokens[begin + row] =
          row < pretended[s] && row + 1 < count ? fed[row + 1] : without_mark(tokens[begin + row]);
  }
}

}  // namespace foresail
