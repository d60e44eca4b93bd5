#include "speculative/head_drafter.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cache_slot.h"
#include "model/scratch.h"
#include "runtime/sampling.h"
#include "speculative/draw_rows.h"

namespace foresail {

HeadDrafter::HeadDrafter(std::string name, std::unique_ptr<DraftHead> head, PassPlanner& planner,
                         int64_t slot_count, int64_t page_count, CacheFormat cache_format,
                         KernelSet* kernels)
    : name_(std::move(name)),
      head_(std::move(head)),
      planner_(planner),
      kernels_(kernels),
      memory_(kernels == nullptr ? host_memory() : kernels->memory()),
      proposals_(slot_count),
      waiting_(slot_count) {
  for (const CacheShape& shape : head_->cache_shapes()) {
    stores_.emplace_back(1, page_count, planner.config().page_size, shape.latent_dim,
                         shape.rope_dim, cache_format, memory_);
    caches_.push_back(stores_.back().layers()[0]);
    slot_caches_.push_back(stores_.back().layers(true)[0]);
  }
}

void HeadDrafter::HeadRows::begin_request(const DraftRequest& request, const OutputGuide* guide) {
  request_slots.push_back(request.slot);
  sampling.push_back(request.sampling);
  guides.push_back(guide == nullptr ? OutputGuide() : *guide);
}

void HeadDrafter::HeadRows::add(const DraftRequest& request, int32_t token, int32_t position,
                                int page_size) {
  tokens.push_back(token);
  positions.push_back(position);
  slots.push_back(cache_slot(request.page_table, position, page_size));
}

std::vector<int32_t> HeadDrafter::HeadRows::last_rows() const {
  std::vector<int32_t> last;
  for (const SequenceRows& sequence : sequences)
    last.push_back(sequence.row_begin + sequence.row_count - 1);
  return last;
}

void HeadDrafter::run(HeadRows& rows, bool recycled, bool keys_are_slots) {
  const std::vector<int32_t> selected = rows.last_rows();
  const auto row_count = static_cast<int64_t>(rows.tokens.size());
  const int64_t width = static_cast<int64_t>(rows.states.size()) / row_count;
  const bool are_placed = rows.placed_states.data != nullptr;
  const MatrixView of_host = {rows.states.data(), DType::kF32, row_count, width, width};
  const DraftHead::Output output =
      head_->forward({.next_tokens = rows.tokens,
                      .states = are_placed ? rows.placed_states : of_host,
                      .states_placed = are_placed,
                      .recycled = recycled,
                      .positions = rows.positions,
                      .slots = rows.slots,
                      .sequences = rows.sequences,
                      .selected_rows = selected},
                     keys_are_slots ? slot_caches_ : caches_);
  const MatrixView states = on_host(memory_, output.states, states_);
  const MatrixView logits = on_host(memory_, output.logits, logits_);
  const std::span<const int32_t> token_map = head_->token_map();
  ThreadPool* const threads = kernels_ == nullptr || observer_ ? nullptr : kernels_->host_threads();
  const auto is_alone = [&](int64_t i) { return rows.guides[i].guides(); };
  draw_rows(threads, std::ssize(selected), is_alone, [&](int64_t i) {
    Proposal& proposal = proposals_[rows.request_slots[i]];
    const auto row = [&](const MatrixView& matrix) {
      return std::span(static_cast<float*>(row_range(matrix, i, 1).data), matrix.cols);
    };
    proposal.state.assign(row(states).begin(), row(states).end());
    // Entry p pairs token p + 1 with state p and so predicts position p + 2.
    proposal.guide = std::move(rows.guides[i]);
    std::span<const uint64_t> allowed;
    if (proposal.guide.guides()) {  // else others may be drawn meanwhile
      proposal.guide.find_allowed(allowed_);
      allowed = allowed_;
    }
    const int32_t draft_token = coupled_argmax(row(logits), *rows.sampling[i],
                                               rows.positions[selected[i]] + 2, token_map, allowed);
    proposal.token = token_map.empty() ? draft_token : token_map[draft_token];
    if (proposal.guide.guides()) proposal.guide.advance(proposal.token);
    if (observer_) observer_(proposal, row(logits));
  });
}

// Adds the rows to those of the slot that wait on the host. False: they must be run now. Whole
// pages have to be complete, because others may come to share them.
bool HeadDrafter::keep_waiting(const ExtendRows& item, const MatrixView& states) {
  WaitingRows& waiting = waiting_[item.request.slot];
  // What does not continue is of an earlier request in the slot, or of one that was retracted.
  if (waiting.end() != item.first_position) waiting = {.first_position = item.first_position};
  const auto row_count = static_cast<int32_t>(item.next_tokens.size());
  waiting.tokens.insert(waiting.tokens.end(), item.next_tokens.begin(), item.next_tokens.end());
  for (int32_t j = 0; j < row_count; ++j) {
    const auto* state = static_cast<const float*>(row_range(states, item.state_row + j, 1).data);
    waiting.states.insert(waiting.states.end(), state, state + states.cols);
  }
  return item.may_wait && !keeps_placed() && !completes_page(waiting);
}

// Rows of a verify pass that were not accepted lie between the requests' rows: they are left out.
void HeadDrafter::extend(std::span<const ExtendRows> items, const MatrixView& states) {
  if (keeps_placed()) {
    std::vector<Caught> behind;
    for (const ExtendRows& item : items) behind.push_back({item.request, item.first_position});
    catch_up(behind);
  }
  HeadRows rows;
  std::vector<PassRows> requests;
  for (const ExtendRows& item : items) {
    if (keep_waiting(item, states)) continue;
    WaitingRows& taken = waiting_[item.request.slot];
    rows.begin_request(item.request, item.request.guide);
    const auto row_count = static_cast<int32_t>(taken.tokens.size());
    for (int32_t j = 0; j < row_count; ++j)
      rows.add(item.request, taken.tokens[j], taken.first_position + j,
               planner_.config().page_size);
    rows.add_state(taken.states.data(), row_count * states.cols);
    requests.push_back({item.request.page_table, {row_count, taken.end()}});
    taken = {.first_position = taken.end()};
  }
  if (requests.empty()) return;
  const PreparedPass pass = planner_.prepare(PassKind::kDraftExtend, requests);
  rows.sequences = pass.sequences;
  run(rows, false, pass.keys_are_slots());
}

void HeadDrafter::draft(std::span<const DraftRequest> requests,
                        std::span<std::vector<int32_t>> drafts) {
  // The first proposal is extend()'s; a pass makes each further one. Entries 0 .. L-1 are final:
  // step i writes entry L + i and sees it.
  std::vector<PassRows> rows_of_loop;
  std::vector<int> pass_counts;
  int most_passes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    drafts[i].clear();
    if (requests[i].steps > 0) drafts[i].push_back(proposals_[requests[i].slot].token);
    const auto kv_len = static_cast<int32_t>(requests[i].tokens.size()) - 1;
    rows_of_loop.push_back({requests[i].page_table, {1, kv_len + 1}});
    pass_counts.push_back(std::max(0, requests[i].steps - 1));
    most_passes = std::max(most_passes, pass_counts.back());
  }
  if (most_passes == 0) return;
  const PreparedDraftLoop loop = planner_.prepare_draft_loop(rows_of_loop, pass_counts);
  for (int step = 0; step < most_passes; ++step) {
    HeadRows rows;
    std::vector<size_t> going;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (step >= pass_counts[i]) continue;
      const Proposal& proposal = proposals_[requests[i].slot];
      rows.begin_request(requests[i], &proposal.guide);
      rows.sequences.push_back(loop.step_rows(i, step, static_cast<int32_t>(going.size())));
      rows.add(requests[i], proposal.token, rows.sequences.back().kv_end - 1,
               planner_.config().page_size);
      rows.add_state(proposal.state.data(), static_cast<int64_t>(proposal.state.size()));
      going.push_back(i);
    }
    run(rows, true, loop.first.keys_are_slots());
    for (const size_t i : going) drafts[i].push_back(proposals_[requests[i].slot].token);
  }
}

}  // namespace foresail
