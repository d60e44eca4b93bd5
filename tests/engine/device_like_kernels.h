// A CPU set that is treated as a device: it chooses tokens and accepts drafts itself, and passes
// are queued behind a verify pass whose outcome the host does not know. What a device changes in
// its own copy of a pass's inputs, this changes in the host's.
#pragma once

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_set.h"
#include "kernels/cpu/isa_select.h"

namespace foresail {

class DeviceLikeKernels : public CpuKernels {
 public:
  DeviceLikeKernels() : CpuKernels(select_isa("auto"), DType::kF32, threads(), nullptr) {}

  bool prefers_choosing() const override { return true; }
  bool begin_pass(const PassInputs& inputs) override {
    const PassLinks& links = inputs.links;
    auto* token_ids = const_cast<int32_t*>(inputs.token_ids.data());
    if (links.token_ids != nullptr)
      std::copy_n(links.token_ids, inputs.token_ids.size(), token_ids);
    if (links.lag != nullptr) apply_lag(inputs);
    linked_passes_ += links.token_ids != nullptr;
    return false;
  }
  // Passes that were queued before their inputs were known to the host.
  int linked_passes() const { return linked_passes_; }

 private:
  static ThreadPool& threads() {
    static ThreadPool pool(1);
    return pool;
  }

  static void apply_lag(const PassInputs& inputs) {
    const PassLinks& links = inputs.links;
    FORESAIL_CHECK(inputs.draws.size() == inputs.sequences.size() &&
                       inputs.wanted_rows.size() == inputs.sequences.size(),
                   "{} draws, {} wanted rows, {} sequences", inputs.draws.size(),
                   inputs.wanted_rows.size(), inputs.sequences.size());
    for (size_t s = 0; s < inputs.sequences.size(); ++s) {
      const int32_t lag = links.lag[s];
      auto& sequence = const_cast<SequenceRows&>(inputs.sequences[s]);
      const_cast<TokenDraw&>(inputs.draws[s]).position -= lag;
      if (links.lag_of == PassLinks::Lag::kWantedRow) {
        const_cast<int32_t&>(inputs.wanted_rows[s]) -= lag;
      } else if (sequence.kv_end > 0) {
        FORESAIL_CHECK(sequence.row_count == 1, "{} rows", sequence.row_count);
        sequence.kv_end -= lag;
        const int32_t position = inputs.positions[sequence.row_begin] - lag;
        const_cast<int32_t&>(inputs.positions[sequence.row_begin]) = position;
        const_cast<int32_t&>(inputs.slots[sequence.row_begin]) =
            sequence.page_table[position / inputs.page_size] * inputs.page_size +
            position % inputs.page_size;
      }
    }
  }

  int linked_passes_ = 0;
};

}  // namespace foresail
