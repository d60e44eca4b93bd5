// What changes logits before a draw, and what is told of a drawn row beside its token: penalties,
// biases, minimum length, masks, log probabilities. The arithmetic that the host's sampler and the
// devices' kernels share, as token_choice.h. Plain values and functions.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/token_choice.h"
#include "kernels/token_truncation.h"

namespace foresail {

struct Penalties {
  float repetition = 1.0f;  // 1: off
  float presence = 0.0f;    // 0: off
  float frequency = 0.0f;   // 0: off
};

// What of one request changes the logit of one token.
struct TokenTerms {
  static constexpr uint32_t kInPrompt = 1;
  static constexpr uint32_t kBlocked = 2;  // not before the request's minimum length
  static constexpr uint32_t kOutput = 4;   // for each time that it was output
  uint32_t seen = 0;                       // sum of these
  float bias = 0.0f;
};

// Of one row that is drawn.
struct DrawTerms {
  int32_t table_row = -1;  // of its request, in a table of TokenTerms; negative: not in it
  int32_t row = 0;  // rows of its request before it in the pass, fed with drafts but the first
  int32_t pretended = -1;  // if not negative: so many drafts stand whatever is chosen; below the
                           // number of its request's rows
  int32_t top_count = -1;  // best tokens whose log probabilities are wanted, and that of the token
                           // itself; negative: none
  int32_t blocked_until = 0;  // blocked tokens cannot be drawn at positions below this one
  Penalties penalties;
  int32_t mask = -1;  // among the masks of the pass; negative: every token is allowed
};

// What any of several draws asks for.
struct TermKinds {
  bool table = false, masks = false, logprobs = false;
  bool changes() const { return table || masks; }
  bool operator==(const TermKinds&) const = default;
};
inline TermKinds kinds_of(std::span<const DrawTerms> terms) {
  TermKinds kinds;
  for (const DrawTerms& of_row : terms) {
    kinds.table |= of_row.table_row >= 0;
    kinds.masks |= of_row.mask >= 0;
    kinds.logprobs |= of_row.top_count >= 0;
  }
  return kinds;
}

// A mask is a bit for each token, lowest first: whether it may be drawn.
constexpr int64_t kMaskBits = 64;
FORESAIL_ANY_DEVICE constexpr int64_t mask_words(int64_t vocab_size) {
  return (vocab_size + kMaskBits - 1) / kMaskBits;
}
FORESAIL_ANY_DEVICE inline bool allows(const uint64_t* mask, int64_t token) {
  return (mask[token / kMaskBits] >> (token % kMaskBits) & 1) != 0;
}

// The prompt counts for the repetition penalty alone.
FORESAIL_ANY_DEVICE inline float penalised_logit(float logit, const Penalties& penalties,
                                                 bool in_prompt, int32_t output_count) {
  const bool in_output = output_count > 0;
  if (in_prompt || in_output)
    logit = logit > 0 ? logit / penalties.repetition : logit * penalties.repetition;
  logit -= penalties.frequency * static_cast<float>(output_count);
  if (in_output) logit -= penalties.presence;
  return logit;
}

// The logit of `token`, whose terms are given, in a row to be drawn for `position`. `drafts`: what
// the terms.row rows before it were followed by.
FORESAIL_ANY_DEVICE inline float changed_logit(float logit, int32_t token,
                                               const TokenTerms& of_token, const DrawTerms& terms,
                                               const int32_t* drafts, int64_t position) {
  auto outputs = static_cast<int32_t>(of_token.seen / TokenTerms::kOutput);
  for (int32_t i = 0; i < terms.row; ++i) outputs += drafts[i] == token ? 1 : 0;
  if ((of_token.seen & TokenTerms::kBlocked) != 0 && position < terms.blocked_until)
    return -std::numeric_limits<float>::infinity();
  return penalised_logit(logit, terms.penalties, (of_token.seen & TokenTerms::kInPrompt) != 0,
                         outputs) +
         of_token.bias;
}

// The token that follows a row and is counted, or negative where the row does not stand. `fed` and
// `chosen` are those of its request's first row.
FORESAIL_ANY_DEVICE inline int32_t token_to_count(const DrawTerms& terms, const int32_t* fed,
                                                  const int32_t* chosen) {
  if (accept_rows(fed, chosen, terms.row + 1, terms.pretended) <= terms.row) return -1;
  return terms.row < terms.pretended ? fed[terms.row + 1] : without_mark(chosen[terms.row]);
}

// Best tokens that kernels rank for a row, at most.
constexpr int32_t kMostRankedTokens = 20;

struct RowLogprobs {
  float chosen;  // of the token that follows
  int32_t ids[kMostRankedTokens];
  float values[kMostRankedTokens];  // as many as were asked for, and there are; then anything
};

// What a logit adds to the sum of a row's, which makes its logarithm (log_of_mass) the same in
// whatever order.
FORESAIL_ANY_DEVICE inline uint64_t logprob_mass(uint32_t key, uint32_t largest_key) {
  if (key == 0) return 0;
  return token_mass(token_weight(logit_of_key(key), logit_of_key(largest_key), 1.0));
}
// Of e^logit, over the row. No number where nothing can be drawn.
FORESAIL_ANY_DEVICE inline double log_of_mass(uint32_t largest_key, uint64_t mass) {
  if (largest_key == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(logit_of_key(largest_key)) +
         plain_log(static_cast<double>(mass) * 0x1p-42);
}
// Nothing is likelier than an infinite logit, which less itself would be no number. No number where
// nothing can be drawn.
FORESAIL_ANY_DEVICE inline float logprob_of(float logit, double log_sum) {
  if (static_cast<double>(logit) >= log_sum) return 0.0f;
  return static_cast<float>(static_cast<double>(logit) - log_sum);
}

}  // namespace foresail
