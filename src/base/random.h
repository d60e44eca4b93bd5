// Random numbers as a pure function of (seed, position, purpose): no state, so a request's draws
// depend neither on its neighbours in the batch nor on how many drafts were verified with it.
// constexpr, so that kernels may use them too.
#pragma once

#include <cstdint>

namespace foresail {

enum class RandomPurpose : uint64_t { kSample = 1, kSimulateAccept = 2, kShuffle = 3 };

// SplitMix64's finaliser (Steele, Lea, Flood 2014).
constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

constexpr uint64_t random_bits(uint64_t seed, uint64_t position, RandomPurpose purpose) {
  return mix_bits(mix_bits(mix_bits(seed) ^ position) ^ static_cast<uint64_t>(purpose));
}

// In [0, 1), 53 bits.
constexpr double random_uniform(uint64_t seed, uint64_t position, RandomPurpose purpose) {
  return static_cast<double>(random_bits(seed, position, purpose) >> 11) * 0x1p-53;
}

}  // namespace foresail
