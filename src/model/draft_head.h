// A network that proposes tokens from the target's states: MTP layers and EAGLE heads.
// Entry p of its own cache encodes (token p+1, target state p); its rotary position is p.
// Owner: a drafter. Thread rule: one forward pass at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_set.h"
#include "model/forward_batch.h"
#include "model/scratch.h"

namespace foresail {

struct DraftBatch {
  std::span<const int32_t> next_tokens;  // [T] token at position p + 1
  MatrixView states;                     // f32 [T, state_dim], without gaps
  bool states_placed = false;          // they are in the memory of the kernels, else in the host's
  bool recycled = false;               // states are this head's own output, not the target's
  std::span<const int32_t> positions;  // [T] p
  std::span<const int32_t> slots;      // [T]
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> selected_rows;  // rows whose output is wanted, ascending; or none
  // Not empty: the pass chooses a token from each selected row, as target ids, and keeps its state.
  std::span<const TokenDraw> draws;  // [selected]
  int32_t* tokens = nullptr;         // [selected], in the memory of the kernels
  MatrixView kept_states;            // f32 [selected, state_dim of the recycled kind], likewise
  PassLinks links;

  // `work_id` of the head, whose operations depend on nothing but the batch.
  PassInputs inputs(uint64_t work_id, std::span<const float> row_scale,
                    std::span<const LatentCache> caches) const {
    PassWork work(caches);
    work.mix(work_id).mix(recycled).mix(tokens).mix(kept_states.data);
    if (states_placed) work.mix(states.data);
    return {.token_ids = next_tokens,
            .positions = positions,
            .slots = slots,
            .row_scale = row_scale,
            .sequences = sequences,
            .wanted_rows = selected_rows,
            .draws = draws,
            .page_size = caches[0].page_size,
            .work = work.value(),
            .links = links};
  }
  // The states where the kernels can read them.
  MatrixView placed_states(Memory& memory, Arena& arena) const {
    return states_placed ? states : placed(memory, arena, states);
  }
  // Ends a pass. `token_map`: in the memory of the kernels; null: draft ids are target ids.
  void choose(KernelSet& kernels, const MatrixView& logits, const int32_t* token_map,
              const MatrixView& output_states) const {
    if (draws.empty()) return;
    kernels.choose_tokens(logits, draws, token_map, false, tokens);
    kernels.convert(output_states, kept_states);
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
  // Columns of the states it feeds back; 0: its passes choose no tokens.
  virtual int64_t state_dim() const { return 0; }
  // Whether its operations depend on positions in a way that only the host knows.
  virtual bool scales_queries() const { return false; }
  // Target id of each draft id; empty: the same.
  virtual std::span<const int32_t> token_map() const { return {}; }
};

}  // namespace foresail
