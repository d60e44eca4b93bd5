// Drafts with a trained head (MTP or EAGLE-3): the first proposal comes from extend() itself, every
// further one from a pass of the head over its own recycled state. Draft step i sees L + i + 1
// keys.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model/draft_head.h"
#include "runtime/latent_store.h"
#include "speculative/drafter.h"

namespace foresail {

class HeadDrafter : public Drafter {
 public:
  // The stores share page ids with the target's. `slot_count`: most requests at once.
  HeadDrafter(std::string name, std::unique_ptr<DraftHead> head, int64_t slot_count,
              int64_t page_count, int page_size, DType cache_dtype);

  std::string_view name() const override { return name_; }
  std::vector<int> target_layers() const override { return head_->target_layers(); }
  void extend(std::span<const ExtendRows> rows, const MatrixView& states) override;
  void draft(std::span<const DraftRequest> requests,
             std::span<std::vector<int32_t>> drafts) override;

  // The head's output for one request's latest row.
  struct Proposal {
    std::vector<float> state;
    int32_t token = 0;  // target id
  };
  // Called with every proposal and its logits as it is made, for `eval drafts` and tests.
  using Observer = std::function<void(const Proposal&, std::span<const float> logits)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  void run(std::span<const DraftRequest> requests, std::span<const int32_t> row_begin,
           bool recycled, std::span<const int32_t> tokens, std::span<const int32_t> positions,
           const MatrixView& states);

  std::string name_;
  std::unique_ptr<DraftHead> head_;
  std::vector<LatentStore> stores_;
  std::vector<LatentCache> caches_;
  std::vector<Proposal> proposals_;  // [slot]
  Observer observer_;
};

}  // namespace foresail
