#include "speculative/iteration.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/scratch.h"
#include "runtime/logprobs.h"
#include "speculative/iteration_rows.h"

namespace foresail {
namespace {

// Of a pass whose every row needs logits: as many as a full batch verifies, so that they fit.
constexpr int32_t kLeastLogprobRows = 64;
constexpr int64_t kLogprobFloats = 4 << 20;  // more only of a small vocabulary

}  // namespace

Iteration::Iteration(MlaModel& model, const LatentStore& store, PassPlanner& planner,
                     Drafter* drafter, IterationOptions options)
    : model_(model), store_(store), planner_(planner), drafter_(drafter), options_(options) {}

Iteration::TargetPass Iteration::prepare_target(PassKind kind, const Rows& rows,
                                                std::span<const int32_t> logit_rows,
                                                const ChoiceBatch& choice) {
  const auto row_count = static_cast<int64_t>(rows.token_ids.size());
  const int64_t hidden_dim = model_.config().hidden_dim;
  TargetPass pass;
  if (drafter_ != nullptr) {
    const std::vector<int> layers = drafter_->target_layers();
    const auto width = static_cast<int64_t>(layers.size()) * hidden_dim;
    grow(states_, row_count * width * sizeof(float), model_.kernels().memory());
    captured_ = {states_.data(), DType::kF32, row_count, width, width};
    for (size_t i = 0; i < layers.size(); ++i)
      pass.captures.push_back(
          {layers[i], column_range(captured_, static_cast<int64_t>(i) * hidden_dim, hidden_dim)});
  }
  pass.prepared = planner_.prepare(kind, rows.requests);
  pass.batch = {.token_ids = rows.token_ids,
                .positions = rows.positions,
                .slots = rows.slots,
                .sequences = pass.prepared.sequences,
                .logit_rows = logit_rows,
                .captures = pass.captures,
                .path = pass.prepared.plan.path,
                .prefix_parts = pass.prepared.prefix_parts,
                .choice = choice};
  return pass;
}

std::span<const LatentCache> Iteration::caches_of(const TargetPass& pass) const {
  return store_.layers(pass.prepared.keys_are_slots());
}

void Iteration::run_target(TargetPass& pass) {
  pass.output = model_.forward(pass.batch, caches_of(pass));
}

void Iteration::run_before_masks(TargetPass& pass, std::span<const DrawRows> rows) {
  const ChoiceBatch choice = std::exchange(pass.batch.choice, {});
  run_target(pass);
  pass.batch.choice = choice;
  pass.batch.choice.masks = place_masks(rows);
}

void Iteration::choose_under_masks(const TargetPass& pass) {
  model_.choose(pass.batch, pass.output.logits, caches_of(pass));
}

MatrixView Iteration::target_states() {
  return on_host(model_.kernels().memory(), captured_, host_states_);
}

int32_t Iteration::draw(RequestState& request, const Verdict& verdict, int64_t row,
                        std::optional<int32_t> pretended) {
  return verdict.tokens.empty() ? draw_from(request, verdict.logits, row, pretended)
                                : take_chosen(request, verdict, row, pretended);
}

int32_t Iteration::draw_from(RequestState& request, const MatrixView& logits, int64_t row,
                             std::optional<int32_t> pretended) {
  const MatrixView view = row_range(logits, row, 1);
  const std::span values(static_cast<float*>(view.data), static_cast<size_t>(view.cols));
  // Sampling changes the row in place.
  std::vector<float> untouched;
  if (request.top_logprobs) untouched.assign(values.begin(), values.end());
  const auto position = static_cast<int64_t>(request.tokens.size());
  const bool too_short = position < request.blocked_until;
  std::span<const uint64_t> allowed;
  if (request.guide.guides()) {  // else others may be drawn meanwhile
    request.guide.find_allowed(allowed_);
    allowed = allowed_;
  }
  int32_t token = Sampler::sample(
      values, request.sampling, request.counts, position,
      too_short ? std::span<const int32_t>(request.blocked) : std::span<const int32_t>(), allowed);
  // A NaN is never the largest, so the chosen logit is one only when there was no other.
  if (std::isnan(values[token])) request.failed = true;
  token = pretended.value_or(token);
  if (request.top_logprobs)
    request.logprobs.push_back(LogprobRow(untouched, *request.top_logprobs).of(untouched[token]));
  request.terms_placed = false;  // of this token only the host knows
  append(request, token);
  return token;
}

void Iteration::append(RequestState& request, int32_t token) {
  // What is drawn is allowed, unless nothing was.
  if (request.guide.guides() && !request.guide.advance(token)) request.failed = true;
  request.counts.add_output(token);
  request.tokens.push_back(token);
}

void Iteration::prefill(std::span<const PrefillRows> chunks) {
  std::vector<PrefillRows> plain;
  std::vector<PassLengths> lengths;
  for (const PrefillRows& chunk : chunks) {
    if (chunk.request->prompt_top_logprobs) {
      prefill_with_logprobs(chunk);
      continue;
    }
    plain.push_back(chunk);
    lengths.push_back({chunk.end - chunk.begin, chunk.end});
  }
  for (const std::vector<size_t>& members : planner_.split(lengths)) {
    std::vector<PrefillRows> pass;
    for (const size_t index : members) pass.push_back(plain[index]);
    prefill_pass(pass);
  }
}

void Iteration::prefill_with_logprobs(PrefillRows chunk) {
  const auto rows = static_cast<int32_t>(
      std::max<int64_t>(kLeastLogprobRows, kLogprobFloats / model_.config().vocab_size));
  for (const int32_t end = chunk.end; chunk.begin < end; chunk.begin = chunk.end) {
    chunk.end = std::min(end, chunk.begin + rows);
    prefill_pass({&chunk, 1});
  }
}

// Of the prompt's tokens that follow the chunk's own rows. `first_row` is that of its first row.
void Iteration::collect_prompt_logprobs(const PrefillRows& chunk, const MatrixView& logits,
                                        int64_t first_row) {
  RequestState& request = *chunk.request;
  for (int32_t position = chunk.begin; position < chunk.prompt_rows_end(); ++position) {
    const MatrixView view = row_range(logits, first_row + position - chunk.begin, 1);
    const std::span values(static_cast<float*>(view.data), static_cast<size_t>(view.cols));
    const float logit = values[request.tokens[position + 1]];
    if (std::isnan(logit)) request.failed = true;
    request.prompt_logprobs.push_back(LogprobRow(values, *request.prompt_top_logprobs).of(logit));
  }
}

void Iteration::prefill_pass(std::span<const PrefillRows> chunks) {
  Rows rows;
  std::vector<int32_t> logit_rows;
  std::vector<DrawRows> drawing;
  for (const PrefillRows& chunk : chunks) {
    const auto tokens = std::span<const int32_t>(chunk.request->tokens)
                            .subspan(chunk.begin, chunk.end - chunk.begin);
    rows.add(*chunk.request, tokens, chunk.begin, store_.page_size());
    for (int32_t position = chunk.begin; position < chunk.prompt_rows_end(); ++position)
      logit_rows.push_back(rows.row_begin.back() + position - chunk.begin);
    if (!chunk.is_last()) continue;
    logit_rows.push_back(static_cast<int32_t>(rows.token_ids.size()) - 1);
    const auto len = static_cast<int64_t>(chunk.request->tokens.size());
    drawing.push_back({chunk.request, len, len, 1});
  }
  const Draws draws = find_draws(drawing, logit_rows.size() > drawing.size());
  Flight flight;
  flight.chosen = !draws.tokens.empty();
  ChoiceBatch choice;
  if (flight.chosen) {
    const ChoicePlaces places = choice_places(std::ssize(draws.tokens), 0, 0, draws.logprobs);
    choice = choice_batch(draws, places);
    expect_chosen(flight, places);
  }
  TargetPass pass = prepare_target(PassKind::kPrefill, rows, logit_rows, choice);
  if (draws.masks) {
    run_before_masks(pass, drawing);
    choose_under_masks(pass);
  } else {
    run_target(pass);
  }
  flight.output = pass.output;
  if (flight.chosen) start_fetch(flight);
  const Verdict verdict = flight.chosen ? fetch_chosen(flight) : fetch_logits(flight.output);
  int64_t logit_row = 0;
  for (const PrefillRows& chunk : chunks) {
    RequestState& request = *chunk.request;
    collect_prompt_logprobs(chunk, verdict.logits, logit_row);
    logit_row += std::max(chunk.prompt_rows_end() - chunk.begin, 0);
    if (!chunk.is_last()) continue;
    request.logprobs.clear();
    draw(request, verdict, logit_row++);
  }
  if (drafter_ == nullptr) return;
  // The token after a chunk is the next prompt token, or the token just drawn: either way it is in
  // tokens by now.
  std::vector<ExtendRows> extend;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const PrefillRows& chunk = chunks[i];
    const std::span<const int32_t> tokens = chunk.request->tokens;
    extend.push_back({{chunk.request->slot, chunk.request->page_table, tokens,
                       &chunk.request->sampling, 0, &chunk.request->guide},
                      chunk.begin,
                      tokens.subspan(chunk.begin + 1, chunk.end - chunk.begin),
                      rows.row_begin[i]});
  }
  if (!drafter_->extend_placed(extend, captured_)) drafter_->extend(extend, target_states());
}

// A draft that the grammar does not allow would be verified in vain, and all that follow it.
void Iteration::keep_allowed(OutputGuide guide, std::vector<int32_t>& drafts) {
  if (!guide.guides()) return;
  size_t kept = 0;
  while (kept < drafts.size() && guide.guides() && guide.advance(drafts[kept])) ++kept;
  drafts.resize(kept);
}

void Iteration::draft(std::span<RequestState* const> requests) {
  for (RequestState* request : requests) request->drafts.clear();
  if (drafter_ == nullptr || requests.empty()) return;
  std::vector<DraftRequest> items;
  std::vector<std::vector<int32_t>> drafts(requests.size());
  for (RequestState* request : requests)
    items.push_back({request->slot, request->page_table, request->tokens, &request->sampling,
                     request->draft_steps, &request->guide});
  drafter_->draft(items, drafts);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i]->drafts = std::move(drafts[i]);
    requests[i]->masked_drafts = true;
    keep_allowed(requests[i]->guide, requests[i]->drafts);
  }
}

}  // namespace foresail
