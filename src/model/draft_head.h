// A network that proposes tokens from the target's states: MTP layers and EAGLE heads.
// Entry p of its own cache encodes (token p+1, target state p); its rotary position is p.
// Owner: a drafter. Thread rule: one forward pass at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_set.h"
#include "model/forward_batch.h"

namespace foresail {

struct DraftBatch {
  std::span<const int32_t> next_tokens;  // [T] token at position p + 1
  MatrixView states;                     // f32 [T, state_dim], host memory, without gaps
  bool recycled = false;                 // states are this head's own output, not the target's
  std::span<const int32_t> positions;    // [T] p
  std::span<const int32_t> slots;        // [T]
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> selected_rows;  // rows whose output is wanted, ascending

  // `work_id` of the head, whose operations depend on nothing but the batch.
  PassInputs inputs(uint64_t work_id, std::span<const float> row_scale,
                    std::span<const LatentCache> caches) const {
    return {.token_ids = next_tokens,
            .positions = positions,
            .slots = slots,
            .row_scale = row_scale,
            .sequences = sequences,
            .wanted_rows = selected_rows,
            .page_size = caches[0].page_size,
            .work = PassWork(caches).mix(work_id).mix(recycled).value()};
  }
};

struct CacheShape {
  int latent_dim = 0;
  int rope_dim = 0;
};

class DraftHead {
 public:
  // In the memory of the kernels, until the next pass of this head.
  struct Output {
    MatrixView states;  // f32 [selected, state_dim of the recycled kind], to feed back
    MatrixView logits;  // f32 [selected, draft vocabulary]
  };

  virtual ~DraftHead() = default;
  virtual Output forward(const DraftBatch& batch, std::span<const LatentCache> caches) = 0;
  virtual std::vector<CacheShape> cache_shapes() const = 0;
  // Target states it reads, as HiddenCapture layers, concatenated in this order.
  virtual std::vector<int> target_layers() const = 0;
  // Target id of each draft id; empty: the same.
  virtual std::span<const int32_t> token_map() const { return {}; }
};

}  // namespace foresail
