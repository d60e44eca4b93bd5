// The part of HeadDrafter that never waits: extend and draft steps queued behind a verify pass
// whose outcome only the device knows. What is laid out here assumes that every draft stood; the
// device takes off what did not (PassLinks). Where nobody wants drafts, rows wait beside the
// kernels instead; they are run when their tokens are known and a page or their room is full, or
// drafts are wanted again.
#include <algorithm>

#include "base/check.h"
#include "model/scratch.h"
#include "runtime/sampling.h"
#include "speculative/head_drafter.h"

namespace foresail {

struct HeadDrafter::QueuedPass {
  MatrixView states;
  bool recycled = false;
  bool keys_are_slots = false;
  std::span<const TokenDraw> draws;
  int32_t* drafts = nullptr;  // [requests]
  PassLinks links;
};

namespace {

// Those of two passes may be unlearnt.
constexpr int32_t kMostLearnt = kMostKeptRows - 2;

int32_t kept_place(int32_t slot, int32_t position) {
  return slot * kMostKeptRows + position % kMostKeptRows;
}

}  // namespace

// Leaves rows of a pass waiting, one of each request.
void HeadDrafter::keep_rows(std::span<const KeptRow> rows, const MatrixView& states) {
  allocate_once(kept_rows_, waiting_.size() * kMostKeptRows * states.cols * sizeof(float), memory_);
  kept_width_ = states.cols;
  std::vector<int32_t> places;
  for (const KeptRow& row : rows) places.push_back(kept_place(row.slot, row.position));
  const LatentCache kept = {.data = kept_rows_.data(),
                            .dtype = DType::kF32,
                            .page_size = kMostKeptRows,
                            .latent_dim = static_cast<int>(kept_width_),
                            .rope_dim = 0,
                            .page_count = static_cast<int64_t>(waiting_.size())};
  PassWork work({&kept, 1});
  work.mix(work_id_).mix(states.data);
  if (!kernels_->begin_pass(
          {.slots = places, .page_size = kMostKeptRows, .work = work.value(), .links = {}})) {
    kernels_->store_rows(states, places, kept);
    kernels_->end_pass();
  }
  for (const KeptRow& row : rows) {
    WaitingRows& waiting = waiting_[row.slot];
    if (waiting.kept_end() != row.position) waiting = {.first_position = row.position};
    ++waiting.unlearnt;
  }
}

void HeadDrafter::learn(std::span<const ExtendRows> items) {
  bool is_full = false;
  std::vector<Caught> waiting_requests;
  for (const ExtendRows& item : items) {
    WaitingRows& waiting = waiting_[item.request.slot];
    if (waiting.unlearnt == 0 || waiting.end() != item.first_position) continue;
    FORESAIL_CHECK(item.next_tokens.size() == 1, "{} rows", item.next_tokens.size());
    waiting.tokens.push_back(item.next_tokens[0]);
    --waiting.unlearnt;
    waiting_requests.push_back({item.request, waiting.end()});
    is_full |= completes_page(waiting) || waiting.end() - waiting.first_position >= kMostLearnt;
  }
  // All at once: a pass costs about the same for one of them.
  if (is_full) catch_up(waiting_requests);
}

void HeadDrafter::catch_up(std::span<const Caught> requests) {
  HeadRows rows;
  std::vector<PassRows> passed;
  std::vector<int32_t> places;
  for (const auto& [request, first_position] : requests) {
    WaitingRows& waiting = waiting_[request.slot];
    if (waiting.tokens.empty() || waiting.end() != first_position) continue;
    const auto row_count = static_cast<int32_t>(waiting.tokens.size());
    for (int32_t j = 0; j < row_count; ++j) {
      const int32_t position = waiting.first_position + j;
      rows.add(request, waiting.tokens[j], position, planner_.config().page_size);
      places.push_back(kept_place(request.slot, position));
    }
    passed.push_back({request.page_table, {row_count, waiting.end()}});
    waiting = {.first_position = waiting.end(), .unlearnt = waiting.unlearnt};
  }
  if (places.empty()) return;
  const auto row_count = static_cast<int64_t>(places.size());
  allocate_once(caught_up_, kept_rows_.size_bytes(), memory_);
  const MatrixView states = {caught_up_.data(), DType::kF32, row_count, kept_width_, kept_width_};
  const auto place_count = static_cast<int64_t>(waiting_.size()) * kMostKeptRows;
  kernels_->begin_pass({.wanted_rows = places, .page_size = kMostKeptRows, .links = {}});
  kernels_->gather_rows({kept_rows_.data(), DType::kF32, place_count, kept_width_, kept_width_},
                        places, states);
  kernels_->end_pass();
  const PreparedPass pass = planner_.prepare(PassKind::kDraftExtend, passed);
  head_->forward({.next_tokens = rows.tokens,
                  .states = states,
                  .states_placed = true,
                  .positions = rows.positions,
                  .slots = rows.slots,
                  .sequences = pass.sequences},
                 pass.keys_are_slots() ? slot_caches_ : caches_);
}

// Rows one after the other need no copy on the host.
bool HeadDrafter::extend_placed(std::span<const ExtendRows> items, const MatrixView& states) {
  if (kernels_ == nullptr || !kernels_->prefers_choosing()) return false;
  int64_t next_row = 0;
  bool may_wait = true;
  for (const ExtendRows& item : items) {
    if (item.state_row != next_row || (item.may_wait && !keeps_placed())) return false;
    next_row += static_cast<int64_t>(item.next_tokens.size());
    may_wait &= item.may_wait && item.next_tokens.size() == 1;
  }
  if (next_row != states.rows || next_row == 0) return false;
  if (may_wait) {
    std::vector<KeptRow> kept;
    for (const ExtendRows& item : items) kept.push_back({item.request.slot, item.first_position});
    keep_rows(kept, states);
    learn(items);
    return true;
  }
  std::vector<Caught> behind;
  for (const ExtendRows& item : items) behind.push_back({item.request, item.first_position});
  if (keeps_placed()) catch_up(behind);
  HeadRows rows;
  rows.placed_states = states;
  std::vector<PassRows> requests;
  for (const ExtendRows& item : items) {
    rows.begin_request(item.request, item.request.guide);
    const auto row_count = static_cast<int32_t>(item.next_tokens.size());
    for (int32_t j = 0; j < row_count; ++j)
      rows.add(item.request, item.next_tokens[j], item.first_position + j,
               planner_.config().page_size);
    requests.push_back({item.request.page_table, {row_count, item.first_position + row_count}});
    waiting_[item.request.slot] = {.first_position = item.first_position + row_count};
  }
  const PreparedPass pass = planner_.prepare(PassKind::kDraftExtend, requests);
  rows.sequences = pass.sequences;
  run(rows, false, pass.keys_are_slots());
  return true;
}

bool HeadDrafter::can_queue(std::span<const QueuedVerify::Rows> requests) const {
  if (kernels_ == nullptr || !kernels_->prefers_choosing() || observer_ ||
      head_->state_dim() == 0 || head_->scales_queries())
    return false;
  if (may_keep(requests)) return true;
  // Rows that wait come first, and their tokens have to be known.
  return std::none_of(requests.begin(), requests.end(), [&](const QueuedVerify::Rows& rows) {
    const WaitingRows& waiting = waiting_[rows.request.slot];
    return waiting.unlearnt > 0 && waiting.kept_end() == rows.first_position;
  });
}

bool HeadDrafter::may_keep(std::span<const QueuedVerify::Rows> requests) {
  return std::all_of(requests.begin(), requests.end(), [](const QueuedVerify::Rows& rows) {
    return rows.request.steps == 0 && rows.row_count == 1 && rows.is_exact;
  });
}

void HeadDrafter::queue_pass(HeadRows& rows, const QueuedPass& pass) {
  const std::vector<int32_t> selected = rows.last_rows();
  const auto request_count = static_cast<int64_t>(selected.size());
  head_->forward({.next_tokens = rows.tokens,
                  .states = pass.states,
                  .states_placed = true,
                  .recycled = pass.recycled,
                  .positions = rows.positions,
                  .slots = rows.slots,
                  .sequences = rows.sequences,
                  .selected_rows = selected,
                  .draws = pass.draws,
                  .tokens = pass.drafts,
                  .kept_states = {kept_states_.data(), DType::kF32, request_count,
                                  head_->state_dim(), head_->state_dim()},
                  .links = pass.links},
                 pass.keys_are_slots ? slot_caches_ : caches_);
}

void HeadDrafter::queue(const QueuedVerify& verify) {
  if (may_keep(verify.requests)) {
    std::vector<KeptRow> kept;
    for (const QueuedVerify::Rows& item : verify.requests)
      kept.push_back({item.request.slot, item.first_position});
    keep_rows(kept, verify.states);
    return;
  }
  std::vector<Caught> behind;
  for (const QueuedVerify::Rows& item : verify.requests)
    if (item.is_exact) behind.push_back({item.request, item.first_position});
  catch_up(behind);
  const auto request_count = static_cast<int64_t>(verify.requests.size());
  const int page_size = planner_.config().page_size;
  grow(kept_states_, request_count * head_->state_dim() * sizeof(float), memory_);
  const MatrixView kept_states = {kept_states_.data(), DType::kF32, request_count,
                                  head_->state_dim(), head_->state_dim()};

  // Entries of rows that do not stand are written too: nothing reads them before they are written
  // again.
  HeadRows rows;
  std::vector<PassRows> extended, looped;
  std::vector<int> pass_counts;
  std::vector<TokenDraw> draws;
  int most_passes = 0;
  for (const QueuedVerify::Rows& item : verify.requests) {
    const DraftRequest& request = item.request;
    const int32_t first = item.first_position;
    const int32_t end = first + item.row_count;
    rows.begin_request(request, nullptr);
    for (int32_t position = first; position < end; ++position)
      rows.add(request, 0, position, page_size);
    extended.push_back({request.page_table, {item.row_count, end}});
    looped.push_back({request.page_table, {1, end + 1}});
    // Entry p predicts position p + 2.
    draws.push_back(draw_of(*request.sampling, end + 1));
    pass_counts.push_back(std::max(0, request.steps - 1));
    most_passes = std::max(most_passes, pass_counts.back());
    waiting_[request.slot] = {};
  }
  const PreparedPass pass = planner_.prepare(PassKind::kDraftExtend, extended);
  rows.sequences = pass.sequences;
  queue_pass(rows, {.states = verify.states,
                    .keys_are_slots = pass.keys_are_slots(),
                    .draws = draws,
                    .drafts = verify.drafts,
                    .links = {verify.next_tokens, verify.lag, PassLinks::Lag::kWantedRow,
                              verify.row_lag}});
  if (most_passes == 0) return;

  const PreparedDraftLoop loop = planner_.prepare_draft_loop(looped, pass_counts);
  for (int step = 0; step < most_passes; ++step) {
    HeadRows step_rows;
    for (size_t i = 0; i < verify.requests.size(); ++i) {
      const DraftRequest& request = verify.requests[i].request;
      step_rows.begin_request(request, nullptr);
      SequenceRows row = loop.step_rows(i, step, static_cast<int32_t>(i));
      const int32_t position = row.kv_end - 1;
      // All requests go on to the last step, so that a batch has one shape; those that want no more
      // drafts as padding.
      if (step < pass_counts[i]) {
        step_rows.add(request, 0, position, page_size);
      } else {
        step_rows.tokens.push_back(0);
        step_rows.positions.push_back(0);
        step_rows.slots.push_back(-1);
        row.kv_end = 0;
      }
      step_rows.sequences.push_back(row);
      draws[i].position = position + 2;
    }
    int32_t* previous = verify.drafts + step * request_count;
    queue_pass(step_rows, {.states = kept_states,
                           .recycled = true,
                           .keys_are_slots = loop.first.keys_are_slots(),
                           .draws = draws,
                           .drafts = previous + request_count,
                           .links = {previous, verify.lag, PassLinks::Lag::kRows, verify.row_lag}});
  }
}

}  // namespace foresail
