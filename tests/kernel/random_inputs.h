// Inputs that the kernel tests of several devices share.
#pragma once

#include <array>

#include "kernel/kernel_fixture.h"

namespace foresail {

// Experts, groups, top groups, top k: those of real models, and the ends.
inline constexpr std::array<int, 4> kRouteShapes[] = {{8, 4, 2, 2},  {256, 8, 4, 8}, {384, 1, 1, 8},
                                                      {64, 1, 1, 6}, {5, 1, 1, 5},   {1, 1, 1, 1}};

// A latent attention where the numbers are not what is tested.
inline constexpr int kSmallHeads = 4, kSmallLatent = 32, kSmallRope = 8;

struct RandomExperts {
  RandomExperts(KernelSet& set, int count, int64_t hidden, int64_t inner) {
    for (int e = 0; e < count; ++e) {
      const uint64_t seed = static_cast<uint64_t>(e) * 2 + 10;
      const float deviation = 1.0f / std::sqrt(static_cast<float>(hidden));
      matrices.push_back(
          set.pack(Tensor(DType::kBF16, 2 * inner, hidden).randomize(seed, deviation).as_weight()));
      matrices.push_back(
          set.pack(Tensor(DType::kBF16, hidden, inner).randomize(seed + 1, deviation).as_weight()));
    }
    for (size_t e = 0; e < matrices.size(); e += 2)
      weights.push_back({matrices[e].get(), matrices[e + 1].get()});
  }
  std::vector<MatrixPtr> matrices;
  std::vector<ExpertWeights> weights;
};

// A latent cache whose pages are scattered and whose unused rows hold NaN.
struct ScatteredCache {
  ScatteredCache(DType dtype, int page_size, int latent, int rope, const std::vector<int>& lengths)
      : page_size_(page_size), width_(latent + rope) {
    int pages = 1;
    for (int length : lengths) pages += length / page_size + 2;
    storage_ = std::make_unique<Tensor>(dtype, int64_t{pages} * page_size, width_);
    storage_->fill(std::numeric_limits<float>::quiet_NaN());
    view_ = {storage_->view().data, dtype, page_size, latent, rope};
    view_.page_count = pages;
    if (dtype == DType::kF8E4M3) view_.scale = 0.5f;
    const std::vector<int> order = shuffled(pages - 1, 99);
    size_t next = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      std::vector<int32_t> table;
      for (int p = 0; p < lengths[s] / page_size + 2; ++p) table.push_back(1 + order[next++]);
      tables_.push_back(table);
      // A key's numbers depend on (sequence, key) only, not on the paging.
      for (int j = 0; j < lengths[s]; ++j) {
        const Tensor row =
            Tensor(DType::kF32, 1, width_).randomize(1000 * s + static_cast<size_t>(j) + 1);
        for (int d = 0; d < width_; ++d) storage_->set(slot(s, j), d, row.at(0, d));
      }
    }
  }
  int64_t slot(size_t sequence, int key) const {
    return int64_t{tables_[sequence][static_cast<size_t>(key / page_size_)]} * page_size_ +
           key % page_size_;
  }
  const Tensor& storage() const { return *storage_; }
  const LatentCache& view() const { return view_; }
  const int32_t* table(size_t sequence) const { return tables_[sequence].data(); }

 private:
  int page_size_;
  int width_;
  std::unique_ptr<Tensor> storage_;
  std::vector<std::vector<int32_t>> tables_;
  LatentCache view_;
};

}  // namespace foresail
