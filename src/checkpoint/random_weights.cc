#include "checkpoint/random_weights.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/float_formats.h"

namespace foresail {
namespace {

struct Distribution {
  double mean, deviation;
};

// FNV-1a, then one mixing round so that near names differ everywhere.
uint64_t name_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull ^ (seed * 0x9E3779B97F4A7C15ull);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  hash ^= hash >> 32;
  return hash * 0xD6E8FEB86659FD93ull;
}

// splitmix64's finaliser over a counter.
inline uint64_t random_bits(uint64_t key, uint64_t counter) {
  uint64_t x = key + counter * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Sums the four bytes of a half without carries between them.
inline uint32_t byte_sum(uint32_t half) {
  const uint32_t pairs = (half & 0x00FF00FF) + ((half >> 8) & 0x00FF00FF);
  return (pairs & 0xFFFF) + (pairs >> 16);
}

Distribution distribution_of(const TensorSpec& spec, bool tied_embeddings) {
  const std::string_view name = spec.name;
  const double fan_in = static_cast<double>(spec.shape.back());
  if (name.ends_with("e_score_correction_bias")) return {0.0, 0.05};
  if (name.ends_with(".bias")) return {0.0, 0.02};
  if (spec.shape.size() == 1) return {1.0, 0.1};  // norms
  // A head that spreads the logits a little, so that sampling has something to choose from.
  if (name.ends_with("lm_head.weight") || name.ends_with("shared_head.head.weight"))
    return {0.0, 2.0 / std::sqrt(fan_in)};
  if (name.ends_with("embed_tokens.weight"))
    return {0.0, tied_embeddings ? 2.0 / std::sqrt(fan_in) : 0.5};
  return {0.0, 1.0 / std::sqrt(fan_in)};
}

}  // namespace

RandomTensor::RandomTensor(uint64_t seed, const TensorSpec& spec, bool tied_embeddings)
    : key_(name_key(seed, spec.name)), dtype_(spec.dtype) {
  FORESAIL_CHECK(dtype_ == DType::kBF16 || dtype_ == DType::kF32, "random weights are BF16 or F32");
  const Distribution distribution = distribution_of(spec, tied_embeddings);
  const double sum_deviation = std::sqrt(4.0 * (256.0 * 256.0 - 1.0) / 12.0);  // of four bytes
  for (int sum = 0; sum < kLevels; ++sum) {
    const double normal = (sum - 510.0) / sum_deviation;
    values_[sum] = static_cast<float>(distribution.mean + distribution.deviation * normal);
    bf16_values_[sum] = to_bf16(values_[sum]).bits;
  }
}

void RandomTensor::fill(uint64_t first_element, std::span<std::byte> out) const {
  FORESAIL_CHECK(first_element % 2 == 0, "first_element {}", first_element);
  const auto generate = [&](const auto* table) {
    using Value = std::remove_cvref_t<decltype(*table)>;
    const size_t count = out.size() / sizeof(Value);
    uint64_t counter = first_element / 2;
    size_t i = 0;
    for (; i + 2 <= count; i += 2, ++counter) {
      const uint64_t bits = random_bits(key_, counter);
      const Value pair[2] = {table[byte_sum(static_cast<uint32_t>(bits))],
                             table[byte_sum(static_cast<uint32_t>(bits >> 32))]};
      std::memcpy(out.data() + i * sizeof(Value), pair, sizeof(pair));
    }
    if (i < count) {
      const Value last = table[byte_sum(static_cast<uint32_t>(random_bits(key_, counter)))];
      std::memcpy(out.data() + i * sizeof(Value), &last, sizeof(last));
    }
  };
  if (dtype_ == DType::kF32) {
    generate(values_);
  } else {
    generate(bf16_values_);
  }
}

}  // namespace foresail
