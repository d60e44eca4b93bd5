// Texts with one std::hash, as whoever wants to slow down a hash table makes them.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace foresail {

// Of libstdc++'s hash of 64 bits, which takes 8 bytes at a time: state = (state ^ scrambled) *
// kFactor.
class CollidingKeys {
 public:
  static constexpr int kParts = 8, kBytes = 16 * kParts;

  // 4 ^ kParts keys of printable ASCII.
  static std::vector<std::string> all() {
    std::vector<std::string> keys = {""};
    uint64_t state = 0xc70f6907u ^ (kBytes * kFactor);
    std::mt19937_64 engine(1);
    for (int part = 0; part < kParts; ++part) {
      uint64_t end = 0;
      std::vector<std::string> ways;  // each of two words, to one state
      while (ways.size() < 4) {
        const uint64_t first = draw(engine);
        const uint64_t between = (state ^ scramble(first)) * kFactor;
        const uint64_t second = ways.empty() ? draw(engine) : unscramble(between ^ end);
        if (!is_printable(second)) continue;
        end = between ^ scramble(second);
        ways.push_back(bytes_of(first) + bytes_of(second));
      }
      state = end * kFactor;
      std::vector<std::string> longer;
      for (const std::string& key : keys)
        for (const std::string& way : ways) longer.push_back(key + way);
      keys = std::move(longer);
    }
    return keys;
  }

 private:
  static constexpr uint64_t kFactor = 0xc6a4a7935bd1e995;

  static constexpr uint64_t inverse() {
    uint64_t inverse = kFactor;
    for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
    return inverse;
  }
  static uint64_t scramble(uint64_t word) {
    word *= kFactor;
    return (word ^ (word >> 47)) * kFactor;
  }
  static uint64_t unscramble(uint64_t word) {
    word *= inverse();
    return (word ^ (word >> 47)) * inverse();
  }
  static uint64_t draw(std::mt19937_64& engine) {
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | ('a' + engine() % 26);
    return word;
  }
  static bool is_printable(uint64_t word) {
    for (const char c : bytes_of(word))
      if (c < ' ' || c > '~' || c == '"' || c == '\\') return false;
    return true;
  }
  static std::string bytes_of(uint64_t word) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &word, 8);
    return bytes;
  }
};

}  // namespace foresail
