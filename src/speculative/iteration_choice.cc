// The part of Iteration that leaves the choice of tokens to the kernels: which batches it can,
// where the tokens lie, how they come to the host.
#include <utility>

#include "model/scratch.h"
#include "speculative/iteration.h"

namespace foresail {
HostChoice Iteration::host_choice(const RequestState& request, int64_t len) {
  const SamplingParams& sampling = request.sampling;
  if (request.top_logprobs) return HostChoice::kLogprobs;
  if (sampling.has_penalties() || !sampling.logit_bias.empty()) return HostChoice::kPenalties;
  if (request.guide.guides()) return HostChoice::kGrammar;
  if (!request.blocked.empty() && len < request.blocked_until) return HostChoice::kMinTokens;
  return HostChoice::kNone;
}

std::vector<TokenDraw> Iteration::find_draws(std::span<const DrawRows> rows, bool wants_logits) {
  if (!model_.kernels().prefers_choosing() || rows.empty()) return {};
  std::vector<TokenDraw> draws;
  for (const DrawRows& drawn : rows) {
    const HostChoice reason =
        wants_logits ? HostChoice::kLogprobs : host_choice(*drawn.request, drawn.least_len);
    if (reason != HostChoice::kNone) {
      ++host_choices_[static_cast<size_t>(reason)];
      return {};
    }
    for (int32_t row = 0; row < drawn.count; ++row)
      draws.push_back(draw_of(drawn.request->sampling, drawn.most_len + row));
  }
  ++host_choices_[static_cast<size_t>(HostChoice::kNone)];
  return draws;
}

Iteration::ChoicePlaces Iteration::choice_places(int64_t row_count, int64_t request_count,
                                                 int64_t steps) {
  const int64_t fetched = row_count + steps * request_count;
  const size_t bytes = (fetched + row_count + request_count) * sizeof(int32_t);
  // What an iteration under way has left there is still to be read.
  if (choices_.size_bytes() < bytes) smaller_choices_ = std::move(choices_);
  grow(choices_, bytes, model_.kernels().memory());
  auto* first = choices_.as<int32_t>();
  return {.tokens = first,
          .drafts = first + row_count,
          .next_tokens = first + fetched,
          .lag = first + fetched + row_count};
}

Iteration::Verdict Iteration::fetch_logits(const MlaModel::Output& output) {
  return {.logits = on_host(model_.kernels().memory(), output.logits, host_logits_), .tokens = {}};
}

void Iteration::start_fetch(Flight& flight) {
  Memory& memory = model_.kernels().memory();
  flight.staging = next_copy_;
  next_copy_ = (next_copy_ + 1) % static_cast<int>(host_choices_copies_.size());
  Buffer& copy = host_choices_copies_[flight.staging];
  const size_t bytes = static_cast<size_t>(flight.fetched) * sizeof(int32_t);
  grow(copy, bytes, memory.staging());
  flight.download = memory.start_download(copy.data(), flight.tokens, bytes);
}

Iteration::Verdict Iteration::fetch_chosen(const Flight& flight) {
  model_.kernels().memory().finish_download(flight.download);
  const auto* tokens = host_choices_copies_[flight.staging].as<int32_t>();
  return {.logits = {}, .tokens = {tokens, tokens + flight.fetched}};
}

}  // namespace foresail
