#include "text/byte_pair_encoder.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace foresail {
namespace {

// Random merges over a few letters, so that pairs overlap and chain.
class BytePairEncoderTest : public testing::Test {
 protected:
  BytePairEncoderTest() {
    std::mt19937 random(5);
    std::vector<int32_t> ids;
    for (int32_t byte = 0; byte < 256; ++byte) {
      tokens_.add(byte, std::string(1, static_cast<char>(byte)));
      ids.push_back(byte);
    }
    std::vector<int32_t> letters{'a', 'b', 'c'};
    for (uint32_t rank = 0; rank < 60; ++rank) {
      const int32_t left = letters[random() % letters.size()],
                    right = letters[random() % letters.size()];
      const auto id = static_cast<int32_t>(256 + rank);
      const std::string bytes =
          std::string(tokens_.bytes(left)) + std::string(tokens_.bytes(right));
      if (ranks_.contains({left, right}) || bytes.size() > 12) continue;
      tokens_.add(id, bytes);
      ids.push_back(id);
      letters.push_back(id);
      merges_.push_back({left, right, id, rank});
      ranks_[{left, right}] = merges_.back();
    }
    tokens_.index(ids);
  }

  // The definition, in quadratic time.
  std::vector<int32_t> naive(std::string_view piece) const {
    std::vector<int32_t> ids(piece.begin(), piece.end());
    for (;;) {
      const Merge* best = nullptr;
      size_t place = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = ranks_.find({ids[i], ids[i + 1]});
        if (found == ranks_.end() || (best && found->second.rank >= best->rank)) continue;
        best = &found->second;
        place = i;
      }
      if (best == nullptr) return ids;
      ids[place] = best->result;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(place) + 1);
    }
  }

  TokenTable tokens_;
  std::vector<Merge> merges_;
  std::map<std::pair<int32_t, int32_t>, Merge> ranks_;
};

TEST_F(BytePairEncoderTest, MergesAsDefinedAtEveryLength) {
  const BytePairEncoder encoder(tokens_, merges_, false);
  std::mt19937 random(6);
  for (size_t length = 1; length <= 200; ++length)
    for (int repeat = 0; repeat < 10; ++repeat) {
      std::string piece;
      while (piece.size() < length) piece += static_cast<char>('a' + random() % 3);
      std::vector<int32_t> ids;
      encoder.encode(piece, ids);
      ASSERT_EQ(ids, naive(piece)) << piece;
    }
}

TEST_F(BytePairEncoderTest, TakesWholePiecesWhenTold) {
  const BytePairEncoder encoder(tokens_, {}, true), merging(tokens_, {}, false);
  const std::string_view token = tokens_.bytes(merges_.back().result);
  std::vector<int32_t> whole, merged;
  encoder.encode(token, whole);
  merging.encode(token, merged);
  EXPECT_EQ(whole.size(), 1u);
  EXPECT_EQ(merged.size(), token.size());
}

TEST_F(BytePairEncoderTest, EncodesAHugePiece) {
  const BytePairEncoder encoder(tokens_, merges_, false);
  std::mt19937 random(7);
  std::string piece(10'000'000, 'a');
  for (size_t i = 0; i < piece.size() / 2; ++i) piece[i] = static_cast<char>('a' + random() % 3);
  std::vector<int32_t> ids;
  encoder.encode(piece, ids);
  std::string back;
  for (const int32_t id : ids) back += tokens_.bytes(id);
  EXPECT_TRUE(back == piece);
}

}  // namespace
}  // namespace foresail
