// The decoding part of Iteration. An iteration may be started behind one whose outcome only the
// device knows: its rows are then laid out as if every draft of that one stood, and the device
// fills in tokens and takes off what did not stand (PassCarry).
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "model/scratch.h"
#include "speculative/draw_rows.h"
#include "speculative/iteration_rows.h"

namespace foresail {
namespace {

// Of the passes of an iteration; ended even when one of them throws.
class Chain {
 public:
  explicit Chain(KernelSet* kernels) : kernels_(kernels) {
    if (kernels_ != nullptr) kernels_->begin_chain();
  }
  ~Chain() {
    try {
      end();
    } catch (const std::exception&) {  // the one under way says what went wrong
    }
  }
  void end() {
    if (KernelSet* kernels = std::exchange(kernels_, nullptr)) kernels->end_chain();
  }

 private:
  KernelSet* kernels_;
};

// Where the request is in the iteration before; negative: not there. Batches mostly keep their
// order.
int64_t place_in(const Flight* before, const RequestState* request, size_t likely) {
  if (before == nullptr) return -1;
  const std::vector<Flight::Item>& items = before->items;
  if (likely < items.size() && items[likely].request == request)
    return static_cast<int64_t>(likely);
  const auto found = std::find_if(items.begin(), items.end(), [&](const Flight::Item& item) {
    return item.request == request;
  });
  return found == items.end() ? -1 : found - items.begin();
}

}  // namespace

// What the host knows of a request before it starts the next iteration.
struct Iteration::Outlook {
  int64_t before = -1;                  // its place in the iteration under way; negative: not there
  int64_t most_len = 0, least_len = 0;  // tokens it will have had
  int32_t draft_len = 0;                // drafts to verify
};

Iteration::Outlook Iteration::outlook(const DecodeRequest& wanted, const Flight* before,
                                      size_t index) const {
  const auto len = static_cast<int64_t>(wanted.request->tokens.size());
  const int64_t place = place_in(before, wanted.request, index);
  if (place < 0) {
    const auto proposed = static_cast<int32_t>(wanted.request->drafts.size());
    return {-1, len, len, std::min(proposed, wanted.most_drafts)};
  }
  const Flight::Item& item = before->items[place];
  const int64_t least = item.pretended < 0 ? 1 : std::min(item.pretended + 1, item.row_count);
  return {place, len + item.row_count, len + least,
          before->queued ? std::min(item.draft_steps, wanted.most_drafts) : 0};
}

StartOrder Iteration::choose_order(std::span<const DecodeRequest> requests, const Flight* before) {
  if (model_.config().rope.query_scaling_beta != 0.0) return StartOrder::kScaledQueries;
  std::vector<QueuedVerify::Rows> rows;
  for (const DecodeRequest& wanted : requests) {
    RequestState& request = *wanted.request;
    const Outlook next = outlook(wanted, before, rows.size());
    if (host_choice(request, next.least_len) != HostChoice::kNone) return StartOrder::kHostDraws;
    if (request.guide.guides()) return StartOrder::kHostMasks;
    rows.push_back(
        {{request.slot, request.page_table, request.tokens, &request.sampling, wanted.draft_steps},
         static_cast<int32_t>(next.most_len) - 1,
         next.draft_len + 1,
         next.most_len == next.least_len});
    if (rows.back().row_count != rows.front().row_count) return StartOrder::kUnequalRows;
  }
  if (drafter_ != nullptr && !drafter_->can_queue(rows)) return StartOrder::kHostDrafts;
  return StartOrder::kAhead;
}

// At a length of `len` tokens, of `draft_len` drafts.
int32_t Iteration::pretended_drafts(const RequestState& request, int64_t len,
                                    int32_t draft_len) const {
  if (!options_.simulate_accept_length) return -1;
  // Floor or ceil at random with the right mean, at most all drafts.
  const double wanted =
      std::clamp(*options_.simulate_accept_length, 1.0, static_cast<double>(draft_len + 1));
  const double u = random_uniform(request.sampling.seed, static_cast<uint64_t>(len),
                                  RandomPurpose::kSimulateAccept);
  return static_cast<int32_t>(std::floor(wanted) + (u < wanted - std::floor(wanted) ? 1 : 0)) - 1;
}

// The rows of one request: what is known of their tokens, or where they will stand.
void Iteration::add_rows(const RequestState& request, const Outlook& next, const Flight* before,
                         Rows& rows) const {
  std::vector<int32_t> tokens(1 + static_cast<size_t>(next.draft_len), 0);
  std::vector<int32_t> carried(tokens.size(), -1);
  int32_t carried_lag = -1;
  if (next.before < 0) {
    tokens[0] = request.tokens.back();
    std::copy_n(request.drafts.begin(), next.draft_len, tokens.begin() + 1);
  } else {
    const Flight::Item& item = before->items[next.before];
    const int64_t last_row = item.row_begin + item.row_count - 1;
    const auto item_count = static_cast<int64_t>(before->items.size());
    carried[0] = static_cast<int32_t>(before->next_tokens_at + last_row);
    for (int32_t step = 0; step < next.draft_len; ++step)
      carried[step + 1] = static_cast<int32_t>(before->drafts_at + step * item_count + next.before);
    if (before->queued) carried_lag = static_cast<int32_t>(before->lags_at + next.before);
  }
  rows.add(request, tokens, static_cast<int32_t>(next.most_len) - 1, store_.page_size());
  rows.carried_tokens.insert(rows.carried_tokens.end(), carried.begin(), carried.end());
  rows.carried_lags.push_back(carried_lag);
}

Flight Iteration::start_ahead(std::span<const DecodeRequest> requests, const Flight* before) {
  Flight flight = start(requests, before, true);
  FORESAIL_CHECK(flight.chosen && flight.queued == (drafter_ != nullptr),
                 "{} requests were started ahead and cannot be", requests.size());
  return flight;
}

Flight Iteration::start(std::span<const DecodeRequest> requests, const Flight* before, bool ahead) {
  Flight flight;
  Rows rows;
  std::vector<DrawRows> drawing;
  std::vector<QueuedVerify::Rows> verified;
  std::vector<int32_t> pretended;
  for (const DecodeRequest& wanted : requests) {
    const RequestState& request = *wanted.request;
    const Outlook next = outlook(wanted, before, flight.items.size());
    add_rows(request, next, before, rows);
    const int32_t row_count = next.draft_len + 1;
    // Where acceptance is pretended, its length is known.
    pretended.push_back(pretended_drafts(request, next.least_len, next.draft_len));
    flight.items.push_back(
        {wanted.request, rows.row_begin.back(), row_count, wanted.draft_steps, pretended.back()});
    flight.steps = std::max(flight.steps, wanted.draft_steps);
    drawing.push_back({wanted.request, next.most_len, next.least_len, row_count, pretended.back()});
    verified.push_back(
        {{request.slot, request.page_table, request.tokens, &request.sampling, wanted.draft_steps},
         static_cast<int32_t>(next.most_len) - 1,
         row_count,
         next.most_len == next.least_len});
  }
  std::vector<int32_t> logit_rows(rows.token_ids.size());
  for (size_t i = 0; i < logit_rows.size(); ++i) logit_rows[i] = static_cast<int32_t>(i);

  const Draws draws = find_draws(drawing, false);
  flight.chosen = !draws.tokens.empty();
  const bool masked_drafts =
      std::any_of(requests.begin(), requests.end(), [](const DecodeRequest& wanted) {
        return wanted.draft_steps > 0 && wanted.request->wants_masked_drafts();
      });
  flight.queued =
      flight.chosen && drafter_ != nullptr && !masked_drafts && drafter_->can_queue(verified);
  const auto request_count = static_cast<int64_t>(requests.size());
  const auto row_count = static_cast<int64_t>(logit_rows.size());
  // Of drafts; one also where nobody wants any.
  const int64_t steps = flight.queued ? std::max(flight.steps, 1) : 0;
  ChoiceBatch choice;
  ChoicePlaces places = {};
  PassCarry carry;
  if (flight.chosen) {
    places = choice_places(row_count, request_count, steps, draws.logprobs);
    choice = choice_batch(draws, places);
    expect_chosen(flight, places);
  }
  if (flight.queued) {
    choice.pretended = pretended;
    choice.next_tokens = places.next_tokens;
    choice.lag = places.lag;
    flight.drafts_at = places.drafts - places.tokens;
    flight.next_tokens_at = places.next_tokens - places.tokens;
    flight.lags_at = places.lag - places.tokens;
  }
  if (ahead) {
    grow(row_lags_, static_cast<size_t>(request_count) * sizeof(int32_t),
         model_.kernels().memory());
    carry = {.from = before == nullptr ? places.tokens : before->tokens,
             .tokens = rows.carried_tokens,
             .lags = rows.carried_lags,
             .row_lag = row_lags_.as<int32_t>()};
  }
  TargetPass pass = prepare_target(PassKind::kVerify, rows, logit_rows, choice);
  pass.batch.carry = carry;
  if (draws.masks) run_before_masks(pass, drawing);
  Chain chain(flight.queued ? &model_.kernels() : nullptr);
  if (draws.masks)
    choose_under_masks(pass);
  else
    run_target(pass);
  flight.output = pass.output;
  if (flight.queued)
    drafter_->queue(
        {verified, captured_, places.next_tokens, places.lag, carry.row_lag, places.drafts});
  chain.end();
  if (flight.chosen) start_fetch(flight);
  return flight;
}

// Appends the target's own token for row 0, then for each further row as long as the draft that
// produced the row was that token.
void Iteration::accept(const Flight::Item& item, const Verdict& verdict, IterationResult& result) {
  RequestState& request = *item.request;
  request.logprobs.clear();
  for (int32_t row = 0; row < item.row_count; ++row) {
    const bool has_draft = row + 1 < item.row_count;
    const bool pretend = has_draft && row < item.pretended;
    const int32_t token = draw(request, verdict, item.row_begin + row,
                               pretend ? std::optional(request.drafts[row]) : std::nullopt);
    result.new_tokens.push_back(token);
    const bool matches = item.pretended >= 0 ? pretend : has_draft && token == request.drafts[row];
    if (!matches) break;
    ++result.accepted;
  }
  result.logprobs = std::move(request.logprobs);
}

std::vector<IterationResult> Iteration::finish(const Flight& flight) {
  const Verdict verdict = flight.chosen ? fetch_chosen(flight) : fetch_logits(flight.output);
  std::vector<IterationResult> results(flight.items.size());
  const auto is_alone = [&](int64_t i) { return flight.items[i].request->guide.guides(); };
  // What the kernels chose is only read.
  ThreadPool* const threads = flight.chosen ? nullptr : model_.kernels().host_threads();
  draw_rows(threads, std::ssize(flight.items), is_alone, [&](int64_t i) {
    const Flight::Item& item = flight.items[i];
    // The plan may want fewer verified than were proposed.
    item.request->drafts.resize(static_cast<size_t>(item.row_count) - 1);
    item.request->draft_steps = item.draft_steps;
    results[i].drafted = item.row_count - 1;
    results[i].drafts = item.request->drafts;
    accept(item, verdict, results[i]);
  });
  if (flight.queued) {
    const auto item_count = static_cast<int64_t>(flight.items.size());
    for (int64_t i = 0; i < item_count; ++i) {
      const Flight::Item& item = flight.items[i];
      item.request->drafts.clear();
      for (int32_t step = 0; step < item.draft_steps; ++step)
        item.request->drafts.push_back(verdict.tokens[flight.drafts_at + step * item_count + i]);
      item.request->masked_drafts = false;
    }
    if (flight.steps == 0) drafter_->learn(standing_rows(flight, results));
  } else if (drafter_ != nullptr) {
    const std::vector<ExtendRows> rows = standing_rows(flight, results);
    if (!drafter_->extend_placed(rows, captured_)) drafter_->extend(rows, target_states());
    std::vector<RequestState*> requests;
    for (const Flight::Item& item : flight.items) requests.push_back(item.request);
    draft(requests);
  }
  return results;
}

std::vector<IterationResult> Iteration::decode(std::span<RequestState* const> requests) {
  std::vector<DecodeRequest> wanted;
  for (RequestState* request : requests)
    wanted.push_back({request, static_cast<int32_t>(request->drafts.size()), request->draft_steps});
  return finish(start(wanted));
}

std::vector<ExtendRows> Iteration::standing_rows(const Flight& flight,
                                                 std::span<const IterationResult> results) {
  std::vector<ExtendRows> rows;
  for (size_t i = 0; i < results.size(); ++i) {
    const RequestState& request = *flight.items[i].request;
    const auto accept_len = static_cast<int64_t>(results[i].new_tokens.size());
    const std::span<const int32_t> tokens = request.tokens;
    const int32_t first_position = static_cast<int32_t>(tokens.size() - accept_len) - 1;
    rows.push_back(
        {{request.slot, request.page_table, tokens, &request.sampling, 0, &request.guide},
         first_position,
         tokens.subspan(first_position + 1, accept_len),
         flight.items[i].row_begin,
         request.draft_steps == 0});
  }
  return rows;
}

}  // namespace foresail
