// The logits of one row as they are drawn from: as they lie, or changed by the row's terms.
#pragma once

#include "kernels/cuda/choice.h"

namespace foresail::cuda {

// Two kinds, so that rows without terms pay nothing.
template <bool kChanged>
class RowLogits {
 public:
  __device__ __forceinline__ RowLogits(const ChoiceArgs& args, int64_t row)
      : logits_(args.logits + row * args.stride) {
    if constexpr (kChanged) {
      terms_ = args.terms.rows[row];
      if (terms_.table_row < 0) return;
      table_ = args.terms.table + terms_.table_row * args.cols;
      drafts_ = terms_.row == 0 ? nullptr : args.terms.fed + row - terms_.row + 1;
      position_ = args.draws[row].position;
    }
  }
  __device__ __forceinline__ float operator[](int64_t i) const {
    const float logit = logits_[i];
    if constexpr (kChanged)
      if (table_ != nullptr)
        return changed_logit(logit, static_cast<int32_t>(i), table_[i], terms_, drafts_, position_);
    return logit;
  }

 private:
  const float* logits_;
  const TokenTerms* table_ = nullptr;
  DrawTerms terms_;
  const int32_t* drafts_ = nullptr;
  int64_t position_ = 0;
};

}  // namespace foresail::cuda
