#include "speculative/head_drafter.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/scratch.h"
#include "runtime/sampling.h"

namespace foresail {

HeadDrafter::HeadDrafter(std::string name, std::unique_ptr<DraftHead> head, int64_t slot_count,
                         int64_t page_count, int page_size, DType cache_dtype)
    : name_(std::move(name)), head_(std::move(head)), proposals_(slot_count) {
  for (const CacheShape& shape : head_->cache_shapes()) {
    stores_.emplace_back(1, page_count, page_size, shape.latent_dim, shape.rope_dim, cache_dtype);
    caches_.push_back(stores_.back().layers()[0]);
  }
}

// Rows [row_begin[i], row_begin[i + 1]) belong to requests[i]; the last of each is kept.
void HeadDrafter::run(std::span<const DraftRequest> requests, std::span<const int32_t> row_begin,
                      bool recycled, std::span<const int32_t> tokens,
                      std::span<const int32_t> positions, const MatrixView& states) {
  const int page_size = caches_[0].page_size;
  std::vector<SequenceRows> sequences;
  std::vector<int32_t> slots, selected;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int32_t rows = row_begin[i + 1] - row_begin[i];
    for (int32_t row = row_begin[i]; row < row_begin[i + 1]; ++row)
      slots.push_back(requests[i].page_table[positions[row] / page_size] * page_size +
                      positions[row] % page_size);
    const int32_t last = row_begin[i + 1] - 1;
    sequences.push_back({row_begin[i], rows, positions[last] + 1, requests[i].page_table});
    selected.push_back(last);
  }
  const DraftHead::Output output =
      head_->forward({tokens, states, recycled, positions, slots, sequences, selected}, caches_);
  for (size_t i = 0; i < requests.size(); ++i) {
    Proposal& proposal = proposals_[requests[i].slot];
    const auto row = [&](const MatrixView& matrix) {
      return std::span(static_cast<float*>(row_range(matrix, static_cast<int64_t>(i), 1).data),
                       matrix.cols);
    };
    proposal.state.assign(row(output.states).begin(), row(output.states).end());
    // Entry p pairs token p + 1 with state p and so predicts position p + 2.
    const std::span<const int32_t> token_map = head_->token_map();
    const int32_t draft_token = coupled_argmax(row(output.logits), *requests[i].sampling,
                                               positions[selected[i]] + 2, token_map);
    proposal.token = token_map.empty() ? draft_token : token_map[draft_token];
    if (observer_) observer_(proposal, row(output.logits));
  }
}

void HeadDrafter::extend(std::span<const ExtendRows> rows, const MatrixView& states) {
  std::vector<DraftRequest> requests;
  std::vector<int32_t> row_begin{0}, tokens, positions;
  for (const ExtendRows& item : rows) {
    requests.push_back(item.request);
    tokens.insert(tokens.end(), item.next_tokens.begin(), item.next_tokens.end());
    for (size_t j = 0; j < item.next_tokens.size(); ++j)
      positions.push_back(item.first_position + static_cast<int32_t>(j));
    row_begin.push_back(static_cast<int32_t>(tokens.size()));
  }
  // Rows of a verify pass that were not accepted lie between the requests' rows: leave them out.
  std::vector<float> packed(tokens.size() * states.cols);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < rows[i].next_tokens.size(); ++j)
      std::memcpy(packed.data() + (row_begin[i] + j) * states.cols,
                  row_range(states, rows[i].state_row + static_cast<int64_t>(j), 1).data,
                  states.cols * sizeof(float));
  run(requests, row_begin, false, tokens, positions,
      {packed.data(), DType::kF32, static_cast<int64_t>(tokens.size()), states.cols, states.cols});
}

void HeadDrafter::draft(std::span<const DraftRequest> requests,
                        std::span<std::vector<int32_t>> drafts) {
  for (std::vector<int32_t>& chain : drafts) chain.clear();
  std::vector<DraftRequest> going;
  std::vector<int32_t> row_begin, tokens, positions;
  std::vector<float> states;
  for (int step = 0;; ++step) {
    going.clear();
    row_begin.assign(1, 0);
    tokens.clear();
    positions.clear();
    states.clear();
    for (size_t i = 0; i < requests.size(); ++i) {
      if (step >= requests[i].steps) continue;
      const Proposal& proposal = proposals_[requests[i].slot];
      drafts[i].push_back(proposal.token);
      if (step + 1 == requests[i].steps) continue;
      going.push_back(requests[i]);
      tokens.push_back(proposal.token);
      // Entries 0 .. L-1 are final; this step writes entry L + step and sees it.
      positions.push_back(static_cast<int32_t>(requests[i].tokens.size()) - 1 + step);
      states.insert(states.end(), proposal.state.begin(), proposal.state.end());
      row_begin.push_back(static_cast<int32_t>(going.size()));
    }
    if (going.empty()) return;
    const auto count = static_cast<int64_t>(going.size());
    const int64_t width = static_cast<int64_t>(states.size()) / count;
    run(going, row_begin, true, tokens, positions,
        {states.data(), DType::kF32, count, width, width});
  }
}

}  // namespace foresail
