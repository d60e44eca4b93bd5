#include "speculative/standalone_drafter.h"

#include <algorithm>

#include "kernels/cache_slot.h"
#include "model/scratch.h"
#include "speculative/draw_rows.h"

namespace foresail {
namespace {

struct TextRows {
  std::vector<int32_t> tokens, positions, slots;

  void add(const DraftRequest& request, int32_t token, int32_t position, int page_size) {
    tokens.push_back(token);
    positions.push_back(position);
    slots.push_back(cache_slot(request.page_table, position, page_size));
  }
};

}  // namespace

StandaloneDrafter::StandaloneDrafter(std::shared_ptr<MlaModel> model, PassPlanner& planner,
                                     int64_t slot_count, int64_t page_count,
                                     CacheFormat cache_format)
    : model_(std::move(model)),
      planner_(planner),
      store_(model_->config().layer_count, page_count, planner.config().page_size,
             static_cast<int>(model_->config().kv_lora_rank),
             static_cast<int>(model_->config().rope_dim), cache_format, model_->kernels().memory()),
      cached_len_(slot_count) {}

// Only fills the cache: the text up to the bonus token, whose own row begins the draft loop.
void StandaloneDrafter::extend(std::span<const ExtendRows> items, const MatrixView&) {
  const int page_size = planner_.config().page_size;
  TextRows rows;
  std::vector<PassRows> requests;
  for (const ExtendRows& item : items) {
    int32_t& cached_len = cached_len_[item.request.slot];
    const int32_t end = item.first_position + static_cast<int32_t>(item.next_tokens.size());
    // Entries that waited come first. What is left of an earlier request in the slot can only make
    // this begin too early, which writes what stands there already.
    const int32_t begin = std::min(cached_len, item.first_position);
    if (item.may_wait && end / page_size == begin / page_size) {
      cached_len = begin;
      continue;
    }
    for (int32_t position = begin; position < end; ++position)
      rows.add(item.request, item.request.tokens[position], position, page_size);
    requests.push_back({item.request.page_table, {end - begin, end}});
    cached_len = end;
  }
  if (requests.empty()) return;
  const PreparedPass pass = planner_.prepare(PassKind::kDraftExtend, requests);
  model_->forward({rows.tokens, rows.positions, rows.slots, pass.sequences, {}, {}, pass.plan.path},
                  store_.layers(pass.keys_are_slots()));
}

void StandaloneDrafter::draft(std::span<const DraftRequest> requests,
                              std::span<std::vector<int32_t>> drafts) {
  const int page_size = planner_.config().page_size;
  std::vector<PassRows> rows_of_loop;
  std::vector<int> pass_counts;
  std::vector<OutputGuide> guides;
  int most_passes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    drafts[i].clear();
    const auto kv_len = static_cast<int32_t>(requests[i].tokens.size()) - 1;
    rows_of_loop.push_back({requests[i].page_table, {1, kv_len + 1}});
    pass_counts.push_back(requests[i].steps);
    guides.push_back(requests[i].guide == nullptr ? OutputGuide() : *requests[i].guide);
    most_passes = std::max(most_passes, requests[i].steps);
  }
  if (most_passes == 0) return;
  const PreparedDraftLoop loop = planner_.prepare_draft_loop(rows_of_loop, pass_counts);
  for (int step = 0; step < most_passes; ++step) {
    TextRows rows;
    std::vector<SequenceRows> sequences;
    std::vector<size_t> going;
    std::vector<int32_t> logit_rows;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (step >= pass_counts[i]) continue;
      logit_rows.push_back(static_cast<int32_t>(going.size()));
      sequences.push_back(loop.step_rows(i, step, logit_rows.back()));
      const int32_t token = step == 0 ? requests[i].tokens.back() : drafts[i].back();
      rows.add(requests[i], token, sequences.back().kv_end - 1, page_size);
      going.push_back(i);
    }
    const MlaModel::Output output =
        model_->forward({rows.tokens, rows.positions, rows.slots, sequences, logit_rows},
                        store_.layers(loop.first.keys_are_slots()));
    const MatrixView all = on_host(model_->kernels().memory(), output.logits, logits_);
    const auto is_alone = [&](int64_t row) { return guides[going[row]].guides(); };
    draw_rows(model_->kernels().host_threads(), std::ssize(going), is_alone, [&](int64_t row) {
      const MatrixView logits = row_range(all, row, 1);
      OutputGuide& guide = guides[going[row]];
      std::vector<uint64_t> allowed;
      guide.find_allowed(allowed);
      const int32_t token =
          coupled_argmax({static_cast<float*>(logits.data), static_cast<size_t>(logits.cols)},
                         *requests[going[row]].sampling, rows.positions[row] + 1, {}, allowed);
      if (guide.guides()) guide.advance(token);
      drafts[going[row]].push_back(token);
    });
  }
}

}  // namespace foresail
