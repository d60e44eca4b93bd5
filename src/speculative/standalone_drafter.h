// Drafts with an independent model of the same vocabulary: it reads the text, not the target's
// states. Its cache entry p belongs to the token at p; step i feeds the token at L + i and sees
// L + i + 1 keys.
#pragma once

#include <memory>

#include "attention/pass_planner.h"
#include "model/mla_model.h"
#include "runtime/latent_store.h"
#include "speculative/drafter.h"

namespace foresail {

class StandaloneDrafter : public Drafter {
 public:
  // Its store shares page ids with the target's. `slot_count`: most requests at once. The model may
  // be the target itself.
  StandaloneDrafter(std::shared_ptr<MlaModel> model, PassPlanner& planner, int64_t slot_count,
                    int64_t page_count, CacheFormat cache_format);

  std::string_view name() const override { return "standalone"; }
  bool drafts_from_bonus() const override { return true; }
  void extend(std::span<const ExtendRows> rows, const MatrixView& states) override;
  void draft(std::span<const DraftRequest> requests,
             std::span<std::vector<int32_t>> drafts) override;

 private:
  std::shared_ptr<MlaModel> model_;
  PassPlanner& planner_;
  LatentStore store_;
  Buffer logits_;                    // a copy where the host cannot read them
  std::vector<int32_t> cached_len_;  // [slot] entries that are final
};

}  // namespace foresail
