// Shared by the kernel tests: every set to test, random tensors, comparison with the oracle.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/element.h"
#include "kernels/ref/ref_kernels.h"

namespace foresail {

// A matrix with its own storage. Gaps between rows and after the end hold NaN.
class Tensor {
 public:
  Tensor(DType dtype, int64_t rows, int64_t cols, int64_t gap = 0)
      : storage_(static_cast<size_t>(rows * (cols + gap)) * size_bytes(dtype), std::byte{0xFF}) {
    view_ = {storage_.data(), dtype, rows, cols, cols + gap};
  }
  Tensor(const Tensor& other) : storage_(other.storage_), view_(other.view_) {
    view_.data = storage_.data();
  }
  Tensor& operator=(const Tensor&) = delete;

  const MatrixView& view() const { return view_; }
  operator const MatrixView&() const { return view_; }
  float at(int64_t row, int64_t col) const { return load_element(view_, row, col); }
  void set(int64_t row, int64_t col, float x) { store_element(view_, row, col, x); }
  float* f32() { return static_cast<float*>(view_.data); }
  int64_t rows() const { return view_.rows; }
  int64_t cols() const { return view_.cols; }

  Tensor& fill(float x) {
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t c = 0; c < cols(); ++c) set(r, c, x);
    return *this;
  }
  Tensor& randomize(uint64_t seed, float deviation = 1.0f, float mean = 0.0f) {
    // Four uniform numbers of one 64-bit hash: near enough to normal, and quick.
    uint64_t state = seed * 0x9E3779B97F4A7C15ull;
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t c = 0; c < cols(); ++c) {
        uint64_t z = (state += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        float sum = -2.0f;
        for (int i = 0; i < 4; ++i) sum += static_cast<float>(z >> (16 * i) & 0xFFFF) * 0x1p-16f;
        set(r, c, mean + deviation * 1.7320508f * sum);
      }
    return *this;
  }
  // Rows picked from this one, in the order given.
  Tensor pick(const std::vector<int>& which) const {
    Tensor t(view_.dtype, static_cast<int64_t>(which.size()), cols());
    for (size_t i = 0; i < which.size(); ++i)
      for (int64_t c = 0; c < cols(); ++c) t.set(static_cast<int64_t>(i), c, at(which[i], c));
    return t;
  }
  HostMatrix as_weight(bool transposed = false) const {
    HostMatrix w{view_.data, view_.dtype, view_.rows, view_.cols, view_.stride, transposed};
    if (transposed) std::swap(w.n_out, w.n_in);
    return w;
  }

 private:
  std::vector<std::byte> storage_;
  MatrixView view_;
};

// A weight of 37 x 53 in any type that checkpoints have.
class OddWeight {
 public:
  explicit OddWeight(DType dtype)
      : dtype_(dtype), values_(dtype == DType::kF16 ? DType::kBF16 : dtype, 37, 53, 2) {
    values_.randomize(4);
    if (dtype == DType::kF16)  // any bits that are finite numbers
      for (int64_t i = 0; i < 37 * 55; ++i)
        static_cast<uint16_t*>(values_.view().data)[i] =
            static_cast<uint16_t>(i * 2654435761u) & 0xBFFF;
  }
  HostMatrix matrix(bool transposed) const {
    HostMatrix matrix = values_.as_weight(transposed);
    matrix.dtype = dtype_;
    return matrix;
  }

 private:
  DType dtype_;
  Tensor values_;
};

// Largest difference, over the largest magnitude of the oracle.
inline void expect_close(const Tensor& got, const Tensor& want, double tolerance,
                         const std::string& what) {
  double scale = 1e-30;
  for (int64_t r = 0; r < want.rows(); ++r)
    for (int64_t c = 0; c < want.cols(); ++c)
      if (std::isfinite(want.at(r, c))) scale = std::max(scale, std::abs(double{want.at(r, c)}));
  for (int64_t r = 0; r < want.rows(); ++r)
    for (int64_t c = 0; c < want.cols(); ++c) {
      const double a = got.at(r, c);
      const double b = want.at(r, c);
      if (a == b) continue;
      ASSERT_LE(std::abs(a - b), tolerance * scale)
          << what << ": row " << r << " col " << c << " got " << a << " want " << b;
    }
}

// Row `got_row` of one equals row `want_row` of the other, bit for bit.
inline void expect_same_row(const Tensor& got, int64_t got_row, const Tensor& want,
                            int64_t want_row, const std::string& what) {
  for (int64_t c = 0; c < want.cols(); ++c) {
    const float a = got.at(got_row, c);
    const float b = want.at(want_row, c);
    ASSERT_EQ(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b))
        << what << ": row " << got_row << " vs " << want_row << " col " << c << ": " << a << " vs "
        << b;
  }
}

// One implementation under test.
struct TestedSet {
  std::string isa;
  DType dtype;
  std::string label() const { return isa + "/" + std::string(dtype_name(dtype)); }
  bool is_bf16() const { return dtype == DType::kBF16; }
};

inline std::vector<TestedSet> all_cases() {
  std::vector<TestedSet> cases;
  for (std::string_view isa : available_isas())
    for (DType dtype : {DType::kF32, DType::kBF16}) cases.push_back({std::string(isa), dtype});
  return cases;
}

// A set with its own pool.
class PooledSet {
 public:
  explicit PooledSet(const TestedSet& c, int threads = 2) : pool_(threads) {
    set_ = create_cpu_kernels({c.dtype, c.isa, &pool_});
  }
  KernelSet* operator->() const { return set_.get(); }
  KernelSet& operator*() const { return *set_; }

 private:
  ThreadPool pool_;
  std::unique_ptr<KernelSet> set_;
};

class KernelTest : public testing::TestWithParam<TestedSet> {
 protected:
  DType act() const { return GetParam().dtype; }
  bool is_bf16() const { return GetParam().is_bf16(); }
  std::unique_ptr<KernelSet> oracle() const { return create_ref_kernels(act()); }
};

#define FORESAIL_FOR_ALL_SETS(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Isa, suite, testing::ValuesIn(all_cases()), [](const auto& test) { \
    return test.param.isa + "_" + std::string(dtype_name(test.param.dtype));                  \
  })

inline std::vector<int> shuffled(int count, uint64_t seed) {
  std::vector<int> order(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) order[static_cast<size_t>(i)] = i;
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

}  // namespace foresail
