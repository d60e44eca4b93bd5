// Plans a pass and builds the metadata its backend reads: nothing else, and every build is counted.
// Keeps no state between passes but the counts. Owner: the loaded model. Thread rule: one caller.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <vector>

#include "attention/attention_plan.h"
#include "attention/key_index.h"

namespace foresail {

// How often each kind of work was done since start-up.
struct MetadataCounts {
  int64_t plans = 0;  // one per pass, one per draft loop
  int64_t key_index_builds = 0;
  int64_t chunk_lists = 0;
  int64_t ragged_plans = 0;
  // Prefill passes that could not run expanded, by why.
  int64_t fallbacks_segmented = 0;
  int64_t fallbacks_prefix = 0;  // over a cached prefix that may not be chunked

  bool operator==(const MetadataCounts&) const = default;
};

// One request of a pass as the caller knows it.
struct PassRows {
  const int32_t* block_table = nullptr;
  PassLengths lengths;
};

// A pass ready to run. `sequences` point into block tables or into key_index: valid as long as
// both.
struct PreparedPass {
  AttentionPlan plan;
  KeyIndex key_index;                   // empty where the backend reads none
  std::vector<SequenceRows> sequences;  // of all requests, rows one after the other
  std::vector<PrefixPart> prefix_parts;

  // Keys are addressed by slot: caches are to be seen at page size 1.
  bool keys_are_slots() const { return metadata_of(plan.backend).key_index; }
};

// All steps of a draft loop. Step i has one row per request that still takes part, at entry
// kv_len + i, and sees kv_len + i + 1 keys.
struct PreparedDraftLoop {
  PreparedPass first;
  SequenceRows step_rows(size_t request, int step, int32_t row_begin) const {
    SequenceRows rows = first.sequences[request];
    rows.row_begin = row_begin;
    rows.kv_end += step;
    return rows;
  }
};

class PassPlanner {
 public:
  PassPlanner(const AttentionConfig& config, const ModelConfig& model)
      : config_(config), model_(model) {}

  const AttentionConfig& config() const { return config_; }
  const MetadataCounts& counts() const { return counts_; }
  // Time spent building key indices and ragged plans since start-up.
  double build_seconds() const { return build_seconds_; }
  // At rest only: what is left out from now on (AttentionConfig).
  void skip_unread_work(bool draft_kv_indices, bool mha_chunk_metadata) {
    config_.skip_draft_kv_indices = draft_kv_indices;
    config_.skip_mha_chunk_metadata = mha_chunk_metadata;
  }

  PreparedPass prepare(PassKind kind, std::span<const PassRows> requests);
  // requests[i].lengths are those of the first step; pass_counts[i] its steps.
  PreparedDraftLoop prepare_draft_loop(std::span<const PassRows> requests,
                                       std::span<const int> pass_counts);
  std::vector<std::vector<size_t>> split(std::span<const PassLengths> requests) const {
    return split_prefill(requests, config_, model_);
  }

  // Called with describe() of every plan not seen before.
  void explain(std::function<void(const std::string&)> print) { explain_ = std::move(print); }

 private:
  PreparedPass build(PassKind kind, std::span<const PassRows> requests,
                     std::span<const int> pass_counts);

  AttentionConfig config_;
  const ModelConfig& model_;
  MetadataCounts counts_;
  double build_seconds_ = 0.0;
  std::function<void(const std::string&)> explain_;
  std::set<std::string> explained_;
};

}  // namespace foresail
