#include "attention/pass_planner.h"

#include <algorithm>
#include <chrono>

#include "attention/ragged_plan.h"

namespace foresail {
namespace {

// Adds the time between its making and its end.
class BuildTimer {
 public:
  explicit BuildTimer(double& total_s) : total_s_(total_s) {}
  ~BuildTimer() {
    total_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& total_s_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

PreparedPass PassPlanner::build(PassKind kind, std::span<const PassRows> requests,
                                std::span<const int> pass_counts) {
  std::vector<PassLengths> lengths;
  for (const PassRows& request : requests) lengths.push_back(request.lengths);
  PreparedPass pass{.plan = plan_attention({kind, lengths}, config_, model_)};
  const AttentionPlan& plan = pass.plan;
  ++counts_.plans;
  if (plan.fallback)
    ++(config_.segmented_prefill ? counts_.fallbacks_segmented : counts_.fallbacks_prefix);
  if (explain_ && explained_.insert(describe(plan)).second) explain_(describe(plan));

  KeyIndex key_index;
  if (plan.key_index) {
    const BuildTimer timer(build_seconds_);
    std::vector<KeyIndexRow> rows;
    for (size_t i = 0; i < requests.size(); ++i) {
      int32_t key_count = lengths[i].kv_end;
      // The keys of the loop's last step. A request without a pass may have no page for any.
      if (!pass_counts.empty())
        key_count = pass_counts[i] == 0 ? 0 : key_count + pass_counts[i] - 1;
      rows.push_back({requests[i].block_table, key_count});
    }
    key_index = build_key_index(rows, config_.page_size);
    ++counts_.key_index_builds;
  }
  // Built on request though unread, it goes no further.
  if (pass.keys_are_slots()) pass.key_index = std::move(key_index);

  int32_t row_begin = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int32_t* keys = pass.keys_are_slots()
                              ? pass.key_index.kv_indices.data() + pass.key_index.kv_indptr[i]
                              : requests[i].block_table;
    pass.sequences.push_back({row_begin, lengths[i].row_count, lengths[i].kv_end, keys});
    row_begin += lengths[i].row_count;
  }

  if (!plan.prefix_chunks.empty()) ++counts_.chunk_lists;
  for (const PrefixChunk& chunk : plan.prefix_chunks) {
    std::vector<PrefixPart> parts = chunk.parts;
    if (plan.ragged_plans) {
      const BuildTimer timer(build_seconds_);
      const RaggedPlan ragged = build_ragged_plan(chunk, lengths);
      ++counts_.ragged_plans;
      if (metadata_of(plan.backend).ragged_plans) parts = ragged_parts(ragged);
    }
    pass.prefix_parts.insert(pass.prefix_parts.end(), parts.begin(), parts.end());
  }
  return pass;
}

PreparedPass PassPlanner::prepare(PassKind kind, std::span<const PassRows> requests) {
  return build(kind, requests, {});
}

PreparedDraftLoop PassPlanner::prepare_draft_loop(std::span<const PassRows> requests,
                                                  std::span<const int> pass_counts) {
  return {build(PassKind::kDraftLoop, requests, pass_counts)};
}

}  // namespace foresail
