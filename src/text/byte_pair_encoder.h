// Byte-level byte-pair encoding of one piece: merge the adjacent pair of lowest rank, leftmost
// first, until none is left. Near-linear in the piece, however long.
// Immutable after construction; any thread may encode with it at once.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/token_table.h"

namespace foresail {

struct Merge {
  int32_t left, right, result;
  uint32_t rank;  // lower merges first; equal ranks merge leftmost first
};

class BytePairEncoder {
 public:
  // `takes_whole_pieces`: a piece that is a token is taken without merging (ignore_merges,
  // tiktoken). `tokens` must outlive the encoder and hold only tokens that text may become.
  BytePairEncoder(const TokenTable& tokens, std::span<const Merge> merges, bool takes_whole_pieces);

  void encode(std::string_view piece, std::vector<int32_t>& out) const;
  // The token of a single byte, or -1.
  int32_t byte_token(unsigned char byte) const { return byte_token_[byte]; }

 private:
  struct Pair {
    uint64_t key;  // left << 32 | right; kEmpty marks a free place
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint64_t kEmpty = ~0ull;
  static constexpr uint32_t kNoRank = ~0u;

  const Pair* find(int32_t left, int32_t right) const;
  void merge(std::string_view piece, std::vector<int32_t>& out) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& out) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& out) const;

  const TokenTable& tokens_;
  int32_t byte_token_[256];
  std::vector<Pair> pairs_;  // open addressing, a power of two
  // Tokens that a piece with the same bytes becomes, so most pieces need no merging.
  std::vector<bool> whole_;  // [vocab_size]
};

}  // namespace foresail
