// From logits to a token: the one home of every sampling step, in this order: repetition, presence
// and frequency penalties, logit bias, minimum length, grammar, temperature, top-k, top-p, min-p,
// draw.
//
// A draw takes the largest of logit / temperature + Gumbel noise (Gumbel 1954), the noise being a
// pure function of (seed, position, token). So verifying drafts by drawing and comparing yields the
// very tokens that plain decoding would, and a drafter that uses the same noise on its own logits
// agrees with the target about as often as two distributions can be made to agree.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "foresail/request.h"
#include "kernels/token_choice.h"
#include "kernels/token_terms.h"

namespace foresail {

// How often each token occurred; the prompt counts only for the repetition penalty.
class TokenCounts {
 public:
  void add_prompt(int32_t token) { counts_[token].in_prompt = true; }
  void add_output(int32_t token) { ++counts_[token].output_count; }
  void remove_output(int32_t token) { --counts_[token].output_count; }

  struct Count {
    bool in_prompt = false;
    int32_t output_count = 0;
  };
  const std::unordered_map<int32_t, Count>& counts() const { return counts_; }

 private:
  std::unordered_map<int32_t, Count> counts_;
};

// Tokens that can be drawn, with their probabilities, in a fixed order.
struct Distribution {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;
};

class Sampler {
 public:
  // Token for the row at `position` (the index the new token will have in the sequence).
  // `logits` [V] is changed in place. `blocked`: ids that must not be drawn (minimum length).
  // `allowed`: one bit per id, only these may be drawn; empty: all.
  static int32_t sample(std::span<float> logits, const SamplingParams& params,
                        const TokenCounts& counts, int64_t position,
                        std::span<const int32_t> blocked = {},
                        std::span<const uint64_t> allowed = {});
  // The distribution that sample() draws from, for temperature > 0.
  static Distribution distribution(std::span<float> logits, const SamplingParams& params,
                                   const TokenCounts& counts,
                                   std::span<const int32_t> blocked = {});
};

// What kernels need to draw as sample() does, and to change logits first.
TokenDraw draw_of(const SamplingParams& params, int64_t position);
Penalties penalties_of(const SamplingParams& params);

// What a drafter proposes for `position`: the largest of logit / temperature + the target's noise,
// of what the request's top-k, top-p and min-p leave of its own logits. token_of maps draft ids to
// target ids; empty: the same. `allowed` as for sample(), of target ids.
int32_t coupled_argmax(std::span<const float> draft_logits, const SamplingParams& params,
                       int64_t position, std::span<const int32_t> token_of,
                       std::span<const uint64_t> allowed = {});

// Lowest id among the maxima; NaN never wins. Precondition: not empty.
int32_t argmax(std::span<const float> logits);

}  // namespace foresail
