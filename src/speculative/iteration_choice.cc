// The part of Iteration that leaves the choice of tokens to the kernels: which batches it can,
// where the tokens lie, how they come to the host.
#include <cstring>

#include "model/scratch.h"
#include "speculative/iteration.h"

namespace foresail {
namespace {

// Why the host has to draw the next tokens of this request itself.
HostChoice host_choice(const RequestState& request) {
  const SamplingParams& sampling = request.sampling;
  if (request.top_logprobs) return HostChoice::kLogprobs;
  if (sampling.has_penalties() || !sampling.logit_bias.empty()) return HostChoice::kPenalties;
  if (request.guide.guides()) return HostChoice::kGrammar;
  if (!request.blocked.empty() &&
      static_cast<int64_t>(request.tokens.size()) < request.blocked_until)
    return HostChoice::kMinTokens;
  return HostChoice::kNone;
}

}  // namespace

std::vector<TokenDraw> Iteration::find_draws(std::span<RequestState* const> requests,
                                             std::span<const int32_t> row_counts,
                                             bool wants_logits) {
  if (!model_.kernels().prefers_choosing() || requests.empty()) return {};
  std::vector<TokenDraw> draws;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestState& request = *requests[i];
    const HostChoice reason = wants_logits ? HostChoice::kLogprobs : host_choice(request);
    if (reason != HostChoice::kNone) {
      ++host_choices_[static_cast<size_t>(reason)];
      return {};
    }
    for (int32_t row = 0; row < row_counts[i]; ++row)
      draws.push_back(draw_of(request.sampling, static_cast<int64_t>(request.tokens.size()) + row));
  }
  ++host_choices_[static_cast<size_t>(HostChoice::kNone)];
  return draws;
}

Iteration::ChoicePlaces Iteration::choice_places(int64_t row_count, int64_t request_count,
                                                 int64_t steps) {
  const int64_t fetched = row_count + steps * request_count;
  grow(choices_, (fetched + row_count + request_count) * sizeof(int32_t),
       model_.kernels().memory());
  auto* first = choices_.as<int32_t>();
  return {.tokens = first,
          .drafts = first + row_count,
          .next_tokens = first + fetched,
          .lag = first + fetched + row_count};
}

Iteration::Verdict Iteration::fetch(const MlaModel::Output& output, bool chosen, int64_t more) {
  Memory& memory = model_.kernels().memory();
  if (!chosen) return {.logits = on_host(memory, output.logits, host_logits_), .tokens = {}};
  const int64_t count = output.logits.rows + more;
  const MatrixView places = {choices_.data(), DType::kI32, 1, count, count};
  const MatrixView copy = on_host(memory, places, host_choices_copy_);
  const auto* tokens = static_cast<const int32_t*>(copy.data);
  return {.logits = {}, .tokens = {tokens, tokens + count}};
}

}  // namespace foresail
