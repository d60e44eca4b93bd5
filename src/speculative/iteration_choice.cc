// The part of Iteration that leaves the choice of tokens to the kernels: which batches it can, what
// they have to know of a request for it, where the tokens lie, how they come to the host.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/log.h"
#include "model/scratch.h"
#include "speculative/iteration.h"

namespace foresail {
namespace {

constexpr int64_t kLogprobWords = sizeof(RowLogprobs) / sizeof(int32_t);

// Words that the host takes of a pass.
int64_t words_to_fetch(int64_t row_count, int64_t draft_count, bool logprobs) {
  return row_count + draft_count + (logprobs ? row_count * kLogprobWords : 0);
}

TokenLogprobs logprobs_of(const int32_t* words, int64_t top_count) {
  RowLogprobs row;
  std::memcpy(&row, words, sizeof(row));
  TokenLogprobs result{.chosen = row.chosen, .top = {}};
  for (int64_t i = 0; i < top_count; ++i) result.top.emplace_back(row.ids[i], row.values[i]);
  return result;
}

}  // namespace

// A request that found no memory is not asked about again, so that what this says of it stays true
// from the choice of an order to the start.
HostChoice Iteration::host_choice(RequestState& request, int64_t len) {
  if (request.top_logprobs.value_or(0) > kMostRankedTokens) return HostChoice::kLogprobs;
  if (!request.guide.guides() && !changes_logits(request, len)) return HostChoice::kNone;
  if (!request.without_terms) request.without_terms = !has_term_memory();
  return request.without_terms ? HostChoice::kMemory : HostChoice::kNone;
}

uint64_t Iteration::term_bytes(uint64_t slot_count, uint64_t vocab_size) {
  const auto words = static_cast<uint64_t>(mask_words(static_cast<int64_t>(vocab_size)));
  return saturating_mul(
      slot_count, vocab_size * sizeof(TokenTerms) + kMostVerifyRows * words * sizeof(uint64_t));
}

// Of all slots at once: the counts of those that run have to stay where they are.
bool Iteration::has_term_memory() {
  try {
    allocate_once(term_table_, term_bytes(options_.slot_count, model_.config().vocab_size),
                  model_.kernels().memory());
    return true;
  } catch (const std::exception& error) {
    write_log(options_.log, LogLevel::kWarning,
              "the host draws for a request with penalties, biases or a grammar, which is "
              "slower: {}",
              error.what());
    return false;
  }
}

// Once false, it stays so: what is not counted is then not asked for.
bool Iteration::changes_logits(const RequestState& request, int64_t len) {
  return request.sampling.has_penalties() || !request.sampling.logit_bias.empty() ||
         (!request.blocked.empty() && len < request.blocked_until);
}

Iteration::Draws Iteration::find_draws(std::span<const DrawRows> rows, bool wants_logits) {
  if (!model_.kernels().prefers_choosing() || rows.empty()) return {};
  for (const DrawRows& drawn : rows) {
    const HostChoice reason =
        wants_logits ? HostChoice::kLogprobs : host_choice(*drawn.request, drawn.least_len);
    if (reason == HostChoice::kNone) continue;
    ++host_choices_[static_cast<size_t>(reason)];
    return {};
  }
  ++host_choices_[static_cast<size_t>(HostChoice::kNone)];
  Draws draws;
  int32_t mask_count = 0;
  for (const DrawRows& drawn : rows) {
    RequestState& request = *drawn.request;
    const SamplingParams& sampling = request.sampling;
    DrawTerms terms = {.pretended = drawn.pretended,
                       .top_count = request.top_logprobs.value_or(-1)};
    if (changes_logits(request, drawn.least_len)) {
      place_terms(request);
      terms.table_row = request.slot;
      terms.blocked_until =
          static_cast<int32_t>(std::min<int64_t>(request.blocked_until, INT32_MAX));
      terms.penalties = penalties_of(sampling);
    }
    for (terms.row = 0; terms.row < drawn.count; ++terms.row) {
      draws.tokens.push_back(draw_of(sampling, drawn.most_len + terms.row));
      if (request.guide.guides()) terms.mask = mask_count++;
      draws.terms.push_back(terms);
    }
  }
  const TermKinds kinds = kinds_of(draws.terms);
  draws.logprobs = kinds.logprobs;
  draws.masks = kinds.masks;
  if (kinds == TermKinds{}) draws.terms.clear();
  return draws;
}

// From what the host knows, which is all: no pass is under way that counts for this request, or the
// table would have been placed before it.
void Iteration::place_terms(RequestState& request) {
  if (request.terms_placed) return;
  const int64_t vocab = model_.config().vocab_size;
  FORESAIL_CHECK(request.slot >= 0 && request.slot < options_.slot_count, "slot {} of {}",
                 request.slot, options_.slot_count);
  terms_.assign(static_cast<size_t>(vocab), {});
  for (const auto& [token, count] : request.counts.counts())
    if (token >= 0 && token < vocab)
      terms_[token].seen = (count.in_prompt ? TokenTerms::kInPrompt : 0) +
                           TokenTerms::kOutput * static_cast<uint32_t>(count.output_count);
  for (const auto& [token, bias] : request.sampling.logit_bias)
    if (token >= 0 && token < vocab) terms_[token].bias = bias;
  for (const int32_t token : request.blocked)
    if (token >= 0 && token < vocab) terms_[token].seen |= TokenTerms::kBlocked;
  model_.kernels().memory().upload(term_table_.as<TokenTerms>() + request.slot * vocab,
                                   terms_.data(), terms_.size() * sizeof(TokenTerms));
  request.terms_placed = true;
}

// A mask at a time: so small an upload does not wait for what is queued before it.
const uint64_t* Iteration::place_masks(std::span<const DrawRows> rows) {
  const int64_t vocab = model_.config().vocab_size;
  const auto words = static_cast<size_t>(mask_words(vocab));
  auto* const first =
      reinterpret_cast<uint64_t*>(term_table_.as<TokenTerms>() + options_.slot_count * vocab);
  uint64_t* mask = first;
  for (const DrawRows& drawn : rows) {
    RequestState& request = *drawn.request;
    OutputGuide guide = request.guide;
    if (!guide.guides()) continue;
    FORESAIL_CHECK(drawn.count <= kMostVerifyRows, "{} rows of a request", drawn.count);
    bool fits = true;  // every draft so far is allowed
    for (int32_t row = 0; row < drawn.count; ++row, mask += words) {
      if (row > 0 && guide.guides()) fits = fits && guide.advance(request.drafts[row - 1]);
      if (!fits) continue;  // no row stands behind such a draft, whatever it is drawn from
      guide.find_allowed(allowed_);
      if (allowed_.empty()) allowed_.assign(words, ~uint64_t{0});
      model_.kernels().memory().upload(mask, allowed_.data(), words * sizeof(uint64_t));
    }
    // Without drafts too, so that nothing is held against a request for ever.
    request.learn_cut(!fits);
  }
  return first;
}

Iteration::ChoicePlaces Iteration::choice_places(int64_t row_count, int64_t request_count,
                                                 int64_t steps, bool logprobs) {
  const int64_t draft_count = steps * request_count;
  const int64_t fetched = words_to_fetch(row_count, draft_count, logprobs);
  const size_t bytes = (fetched + row_count + request_count) * sizeof(int32_t);
  // What an iteration under way has left there is still to be read.
  if (choices_.size_bytes() < bytes) smaller_choices_ = std::move(choices_);
  grow(choices_, bytes, model_.kernels().memory());
  auto* first = choices_.as<int32_t>();
  auto* behind_drafts = reinterpret_cast<RowLogprobs*>(first + row_count + draft_count);
  return {.tokens = first,
          .drafts = first + row_count,
          .logprobs = logprobs ? behind_drafts : nullptr,
          .next_tokens = first + fetched,
          .lag = first + fetched + row_count};
}

ChoiceBatch Iteration::choice_batch(const Draws& draws, const ChoicePlaces& places) const {
  ChoiceBatch choice{.draws = draws.tokens, .tokens = places.tokens};
  if (draws.terms.empty()) return choice;
  choice.terms = draws.terms;
  choice.term_table = term_table_.as<TokenTerms>();
  choice.logprobs = places.logprobs;
  return choice;
}

void Iteration::expect_chosen(Flight& flight, const ChoicePlaces& places) {
  flight.tokens = places.tokens;
  flight.fetched = places.next_tokens - places.tokens;
  if (places.logprobs != nullptr)
    flight.logprobs_at = reinterpret_cast<int32_t*>(places.logprobs) - places.tokens;
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
  return {
      .logits = {}, .tokens = {tokens, tokens + flight.fetched}, .logprobs_at = flight.logprobs_at};
}

int32_t Iteration::take_chosen(RequestState& request, const Verdict& verdict, int64_t row,
                               std::optional<int32_t> pretended) const {
  if (verdict.tokens[row] < 0) request.failed = true;
  const int32_t token = pretended.value_or(without_mark(verdict.tokens[row]));
  if (request.top_logprobs)
    request.logprobs.push_back(
        logprobs_of(verdict.tokens.data() + verdict.logprobs_at + row * kLogprobWords,
                    std::min<int64_t>(*request.top_logprobs, model_.config().vocab_size)));
  append(request, token);
  return token;
}

}  // namespace foresail
