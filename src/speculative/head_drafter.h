// Drafts with a trained head (MTP or EAGLE-3): the first proposal comes from extend() itself, every
// further one from a pass of the head over its own recycled state. Draft step i sees L + i + 1
// keys.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "attention/pass_planner.h"
#include "model/draft_head.h"
#include "runtime/latent_store.h"
#include "speculative/drafter.h"

namespace foresail {

// Rows of a slot that wait beside the kernels at most, in a ring by position.
inline constexpr int32_t kMostKeptRows = 16;

class HeadDrafter : public Drafter {
 public:
  // The stores share page ids with the target's, of the planner's page size. `slot_count`: most
  // requests at once. `kernels`: the head's; null: some of the host's.
  HeadDrafter(std::string name, std::unique_ptr<DraftHead> head, PassPlanner& planner,
              int64_t slot_count, int64_t page_count, CacheFormat cache_format,
              KernelSet* kernels = nullptr);

  std::string_view name() const override { return name_; }
  std::vector<int> target_layers() const override { return head_->target_layers(); }
  void extend(std::span<const ExtendRows> rows, const MatrixView& states) override;
  bool extend_placed(std::span<const ExtendRows> rows, const MatrixView& states) override;
  bool can_queue(std::span<const QueuedVerify::Rows> requests) const override;
  void queue(const QueuedVerify& verify) override;
  void learn(std::span<const ExtendRows> rows) override;
  void draft(std::span<const DraftRequest> requests,
             std::span<std::vector<int32_t>> drafts) override;

  // The head's output for one request's latest row.
  struct Proposal {
    std::vector<float> state;
    int32_t token = 0;  // target id
    OutputGuide guide;  // after it
  };
  // Called with every proposal and its logits as it is made, for `eval drafts` and tests.
  using Observer = std::function<void(const Proposal&, std::span<const float> logits)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  // Rows of several requests, one after the other; the last row of each becomes its proposal.
  struct HeadRows {
    std::vector<int32_t> request_slots;  // of each request
    std::vector<SequenceRows> sequences;
    std::vector<int32_t> tokens, positions, slots;  // of each row
    std::vector<float> states;
    MatrixView placed_states;  // instead, where they are in the memory of the kernels
    std::vector<const SamplingParams*> sampling;
    std::vector<OutputGuide> guides;  // before the proposal

    void begin_request(const DraftRequest& request, const OutputGuide* guide);
    void add(const DraftRequest& request, int32_t token, int32_t position, int page_size);
    void add_state(const float* state, int64_t state_dim) {
      states.insert(states.end(), state, state + state_dim);
    }
    // The last row of every sequence.
    std::vector<int32_t> last_rows() const;
  };
  struct QueuedPass;
  // Accepted rows of a request that have waited, for the entries right before the next ones.
  struct WaitingRows {
    int32_t first_position = 0;
    std::vector<int32_t> tokens;
    std::vector<float> states;  // of the tokens; where keeps_placed(), in kept_rows_
    int32_t unlearnt = 0;       // rows behind them, of passes whose tokens the host does not know
    int32_t end() const { return first_position + static_cast<int32_t>(tokens.size()); }
    int32_t kept_end() const { return end() + unlearnt; }
  };
  // One row of a request that waits beside the kernels.
  struct KeptRow {
    int32_t slot = 0, position = 0;
  };
  // Whether rows wait in the memory of the kernels.
  bool keeps_placed() const {
    return kernels_ != nullptr && kernels_->prefers_choosing() && head_->state_dim() > 0;
  }
  bool completes_page(const WaitingRows& waiting) const {
    const int page_size = planner_.config().page_size;
    return waiting.end() / page_size > waiting.first_position / page_size;
  }
  bool keep_waiting(const ExtendRows& item, const MatrixView& states);
  // Whether a queued pass would leave its rows waiting.
  static bool may_keep(std::span<const QueuedVerify::Rows> requests);
  void keep_rows(std::span<const KeptRow> rows, const MatrixView& states);
  // Runs what waits beside the kernels for these requests, all learnt. Only what ends where their
  // rows begin: anything else is of an earlier request in the slot.
  struct Caught {
    DraftRequest request;
    int32_t first_position = 0;
  };
  void catch_up(std::span<const Caught> requests);
  void run(HeadRows& rows, bool recycled, bool keys_are_slots);
  void queue_pass(HeadRows& rows, const QueuedPass& pass);

  std::string name_;
  std::unique_ptr<DraftHead> head_;
  PassPlanner& planner_;
  KernelSet* kernels_;
  Memory& memory_;
  std::vector<LatentStore> stores_;
  std::vector<LatentCache> caches_, slot_caches_;
  std::vector<Proposal> proposals_;   // [slot]
  std::vector<WaitingRows> waiting_;  // [slot]
  Buffer states_, logits_;  // copies of the head's outputs where the host cannot read them
  Buffer kept_states_;      // of queued passes, [requests, state_dim] beside the kernels
  // Target states beside the kernels, [slot][kMostKeptRows] and dense.
  Buffer kept_rows_, caught_up_;
  int64_t kept_width_ = 0;  // of the rows there
  uint64_t work_id_ = new_work_id();
  std::vector<uint64_t> allowed_;  // of the proposal being made
  Observer observer_;
};

}  // namespace foresail
