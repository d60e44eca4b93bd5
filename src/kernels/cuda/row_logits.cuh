// The logits of one row as they are drawn from: as they lie, or changed by the row's terms. And how
// rows are cut into parts, a block each.
#pragma once

#include "kernels/cuda/choice.h"

namespace foresail::cuda {

constexpr int64_t kPartCols = 4096;
inline int64_t parts_of(int64_t cols) {
  return (cols + kPartCols - 1) / kPartCols;
}
// x: the part, y: the row.
inline dim3 grid_of(const ChoiceArgs& args) {
  return dim3(static_cast<unsigned>(parts_of(args.cols)), static_cast<unsigned>(args.rows));
}

// Two kinds, so that rows without terms pay nothing.
template <bool kChanged>
class RowLogits {
 public:
  __device__ __forceinline__ RowLogits(const ChoiceArgs& args, int64_t row)
      : logits_(args.logits + row * args.stride) {
    if constexpr (kChanged) {
      terms_ = args.terms.rows[row];
      if (terms_.mask >= 0) mask_ = args.terms.masks + terms_.mask * mask_words(args.cols);
      if (terms_.table_row < 0) return;
      table_ = args.terms.table + terms_.table_row * args.cols;
      drafts_ = terms_.row == 0 ? nullptr : args.terms.fed + row - terms_.row + 1;
      position_ = args.draws[row].position;
    }
  }
  __device__ __forceinline__ float operator[](int64_t i) const {
    if constexpr (kChanged) {
      if (mask_ != nullptr && !allows(mask_, i)) return -std::numeric_limits<float>::infinity();
      if (table_ != nullptr)
        return changed_logit(logits_[i], static_cast<int32_t>(i), table_[i], terms_, drafts_,
                             position_);
    }
    return logits_[i];
  }

 private:
  const float* logits_;
  const TokenTerms* table_ = nullptr;
  const uint64_t* mask_ = nullptr;
  DrawTerms terms_;
  const int32_t* drafts_ = nullptr;
  int64_t position_ = 0;
};

}  // namespace foresail::cuda
