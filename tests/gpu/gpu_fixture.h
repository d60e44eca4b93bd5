// Shared by the GPU tests: a set on the device, and host tensors with a copy there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "foresail/options.h"
#include "kernel/kernel_fixture.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tensor/buffer.h"

namespace foresail {

// compute-sanitizer makes kernels and recordings some hundred times slower. Where
// FORESAIL_BRIEF_TESTS is set (`scripts/gpu-check --sanitize` does) the slow tests do less of the
// same: shorter and fewer requests, no kernel left out; but most passes are met too seldom to be
// replayed from a recording (of the same kernels). Under racecheck, with
// 31 tests at once on two H200s, a pass of models/tales takes about 4 s and 0.6 s for each of its
// rows, and keeps 0.1 GiB of the host's memory for each of those seconds: what a test repeats is a
// parameter of it, since a parameter is a process of its own there.
template <typename T>
T full_or_brief(T full, std::type_identity_t<T> brief) {
  static const bool is_brief = std::getenv("FORESAIL_BRIEF_TESTS") != nullptr;
  return is_brief ? std::move(brief) : std::move(full);
}

// A prompt, where tests are brief: a chunk of three tokens and one more.
inline void shorten_if_brief(std::vector<int32_t>& ids) {
  ids.resize(std::min(ids.size(), full_or_brief(ids.size(), 4)));
}

// What tests of drafting are repeated for, and what a repetition is called.
inline constexpr SpeculativeAlgorithm kDrafters[] = {
    SpeculativeAlgorithm::kNone, SpeculativeAlgorithm::kMtp, SpeculativeAlgorithm::kEagle3};
inline std::string drafter_name(const testing::TestParamInfo<SpeculativeAlgorithm>& test) {
  return test.param == SpeculativeAlgorithm::kNone  ? "alone"
         : test.param == SpeculativeAlgorithm::kMtp ? "mtp"
                                                    : "eagle3";
}

// A copy of a tensor, gaps included, in the memory of a set.
class Copy {
 public:
  Copy(KernelSet& set, const Tensor& tensor) : set_(set), view_(tensor.view()) {
    bytes_ = static_cast<size_t>(view_.rows * view_.stride) * size_bytes(view_.dtype);
    buffer_ = Buffer(std::max<size_t>(bytes_, 1), set.memory());
    set.memory().upload(buffer_.data(), view_.data, bytes_);
    view_.data = buffer_.data();
  }
  const MatrixView& view() const { return view_; }
  operator const MatrixView&() const { return view_; }
  const float* f32() const { return static_cast<const float*>(view_.data); }
  // The host's tensor becomes what the device holds.
  Tensor& read(Tensor& tensor) const {
    set_.memory().download(tensor.view().data, view_.data, bytes_);
    return tensor;
  }

 private:
  KernelSet& set_;
  Buffer buffer_;
  MatrixView view_;
  size_t bytes_ = 0;
};

class GpuTest : public testing::Test {
 protected:
  explicit GpuTest(bool deterministic = true)
      : set_(create_cuda_kernels({.deterministic = deterministic})) {}
  KernelSet& set() { return *set_; }
  KernelSet& ref() { return *ref_; }
  Copy copy(const Tensor& tensor) { return {*set_, tensor}; }
  // A pass whose inputs are only what is named.
  void begin(PassInputs inputs) {
    if (inputs.page_size == 0) inputs.page_size = 16;
    set_->begin_pass(inputs);
  }

 private:
  std::unique_ptr<KernelSet> set_;
  std::unique_ptr<KernelSet> ref_ = create_ref_kernels(DType::kBF16);
};

}  // namespace foresail
