// A draft head over the scripted model of digest_kernels.h: its cache holds, for every position,
// the token after it and the target state it was paired with, and each pass checks every entry.
// So an entry made from a guess, from a wrong neighbour at a chunk's end or for another successor
// is an exception and not a lower acceptance.
// Owned by a HeadDrafter.
// One thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/digest_kernels.h"
#include "model/draft_head.h"

namespace foresail {

class DigestHead : public DraftHead {
 public:
  // The token it proposes after a context.
  using Guess = std::function<int32_t(std::span<const int32_t> context)>;

  // One request in one pass.
  struct Pass {
    bool recycled = false;  // a step of the draft loop
    int32_t row_count = 0;
    int32_t last_position = 0;
    int32_t kv_end = 0;
    int32_t guessed_keys = 0;  // of the keys seen, those that hold a draft not verified yet
  };

  DigestHead(std::shared_ptr<KnownContexts> contexts, Guess guess)
      : contexts_(std::move(contexts)), guess_(std::move(guess)) {}

  Output forward(const DraftBatch& batch, std::span<const LatentCache> caches) override;
  std::vector<CacheShape> cache_shapes() const override;
  std::vector<int> target_layers() const override;

  // Every pass so far, shared so that a test may keep it.
  std::shared_ptr<std::vector<Pass>> passes() const { return passes_; }

 private:
  void write_row(const DraftBatch& batch, int32_t row, const LatentCache& cache);
  void check_keys(const DraftBatch& batch, const SequenceRows& sequence, const LatentCache& cache);

  std::shared_ptr<KnownContexts> contexts_;
  Guess guess_;
  std::shared_ptr<std::vector<Pass>> passes_ = std::make_shared<std::vector<Pass>>();
  std::vector<float> states_, logits_;
};

}  // namespace foresail
