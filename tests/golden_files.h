// Reading the golden outputs that tests compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace foresail {

inline std::filesystem::path golden_dir(const std::string& name) {
  return std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/goldens" / name;
}

class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path) : file_(path) {}

  bool has(const std::string& name) const { return file_.header().find(name).has_value(); }
  std::vector<float> floats(const std::string& name) const { return values<float>(name); }
  std::vector<int64_t> ids(const std::string& name) const { return values<int64_t>(name); }
  std::vector<int32_t> tokens(const std::string& name) const {
    const std::vector<int64_t> wide = ids(name);
    return {wide.begin(), wide.end()};
  }

 private:
  template <typename T>
  std::vector<T> values(const std::string& name) const {
    const StoredTensor tensor = file_.header().tensor(file_.header().find(name).value());
    std::vector<T> result((tensor.end_bytes - tensor.begin_bytes) / sizeof(T));
    file_.read(tensor, 0, std::as_writable_bytes(std::span(result)));
    return result;
  }
  SafetensorsFile file_;
};

// Largest |a - b| over the largest |b|.
inline double relative_error(const float* a, const std::vector<float>& b) {
  double difference = 0.0;
  double largest = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return difference / largest;
}

// KL divergence of the distributions that two rows of logits say.
inline double divergence(const float* ours, const float* theirs, int64_t vocab) {
  const auto log_sum = [&](const float* logits) {
    const double largest = *std::max_element(logits, logits + vocab);
    double sum = 0.0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - largest);
    return largest + std::log(sum);
  };
  const double our_sum = log_sum(ours);
  const double their_sum = log_sum(theirs);
  double kl = 0.0;
  for (int64_t i = 0; i < vocab; ++i) {
    const double log_p = theirs[i] - their_sum;
    kl += std::exp(log_p) * (log_p - (ours[i] - our_sum));
  }
  return kl;
}

}  // namespace foresail
