// Tokens chosen and drafts accepted on the GPU are the host's, bit for bit.
#include <cmath>

#include "gpu_fixture.h"

namespace foresail {
namespace {

std::vector<int32_t> read_ints(KernelSet& set, const Buffer& buffer, size_t count) {
  std::vector<int32_t> values(count);
  set.memory().download(values.data(), buffer.data(), count * sizeof(int32_t));
  return values;
}

class GpuChoice : public GpuTest {
 protected:
  void expect_tokens(int64_t vocab) {
    for (const double inverse_temperature : {0.0, 1.0, 1.25, 5.0}) {
      constexpr int kRows = 37;
      Tensor logits = Tensor(DType::kF32, kRows, vocab, 3).randomize(vocab, 8.0f);
      for (int row = 0; row < kRows; row += 3) logits.set(row, row % vocab, NAN);
      for (int64_t i = 0; i < vocab; ++i) {
        logits.set(1, i, NAN);
        logits.set(2, i, -INFINITY);
        logits.set(4, i, 1.0f);  // all equal: the lowest id where greedy
      }
      std::vector<TokenDraw> draws(kRows);
      for (int row = 0; row < kRows; ++row)
        draws[row] = {.seed = 99, .inverse_temperature = inverse_temperature, .position = 7 * row};
      std::vector<int32_t> map(vocab);
      for (int64_t i = 0; i < vocab; ++i) map[i] = static_cast<int32_t>((i * 5 + 2) % 200000);
      Buffer device_map(vocab * sizeof(int32_t), set().memory());
      set().memory().upload(device_map.data(), map.data(), device_map.size_bytes());
      Buffer tokens(kRows * sizeof(int32_t), set().memory());
      const Copy device_logits = copy(logits);
      begin({.draws = draws});
      for (const bool mapped : {false, true}) {
        std::vector<int32_t> expected(kRows);
        ref().choose_tokens(logits, draws, mapped ? map.data() : nullptr, !mapped, expected.data());
        set().choose_tokens(device_logits, draws, mapped ? device_map.as<int32_t>() : nullptr,
                            !mapped, tokens.as<int32_t>());
        EXPECT_EQ(read_ints(set(), tokens, kRows), expected)
            << vocab << " " << inverse_temperature << " " << mapped;
      }
    }
  }

  // Rows of every kind beside each other, with many equal logits and with few.
  void expect_truncated(int64_t vocab) {
    constexpr int kRows = 60;
    Tensor logits = Tensor(DType::kF32, kRows, vocab, 1).randomize(vocab, 8.0f);
    for (int row = 1; row < kRows; row += 2)
      for (int64_t i = 0; i < vocab; ++i)
        logits.set(row, i, std::floor(static_cast<float>(logits.at(row, i))));
    for (int row = 0; row < kRows; row += 7) logits.set(row, row % vocab, NAN);
    for (int64_t i = 0; i < vocab; ++i) {
      logits.set(2, i, -INFINITY);
      logits.set(4, i, -3.0f);
    }
    const auto compare = [&](const std::vector<TokenDraw>& draws, const std::string& what) {
      const Copy device_logits = copy(logits);
      Buffer tokens(kRows * sizeof(int32_t), set().memory());
      std::vector<int32_t> expected(kRows);
      ref().choose_tokens(logits, draws, nullptr, true, expected.data());
      begin({.draws = draws});
      set().choose_tokens(device_logits, draws, nullptr, true, tokens.as<int32_t>());
      EXPECT_EQ(read_ints(set(), tokens, kRows), expected) << vocab << " " << what;
    };
    const int top_ks[] = {0, 1, 3, 50, 100000};
    const float top_ps[] = {1.0f, 0.0f, 0.5f, 0.95f, 0.9999f};
    const float min_ps[] = {0.0f, 0.1f, 1.0f};
    for (const uint64_t seed : {1, 2, 3}) {
      std::vector<TokenDraw> mixed(kRows), of_k(kRows), of_p(kRows), of_min(kRows);
      for (int row = 0; row < kRows; ++row) {
        const double inverse = row % 11 == 10 ? 0.0 : 0.5 + 0.25 * (row % 4);
        mixed[row] = {seed, inverse, row, top_ks[row % 5], top_ps[row / 5 % 5], min_ps[row % 3]};
        of_k[row] = {seed, inverse, row, top_ks[row % 5]};
        of_p[row] = {seed, inverse, row, 0, top_ps[row % 5]};
        of_min[row] = {seed, inverse, row, 0, 1.0f, min_ps[row % 3]};
      }
      compare(mixed, "mixed");
      compare(of_k, "top-k");
      compare(of_p, "top-p");
      compare(of_min, "min-p");
    }
  }
};

TEST_F(GpuChoice, TokensAreTheHosts) {
  for (const int64_t vocab : {1, 31, 4096, 4097, 129280}) expect_tokens(vocab);
}

TEST_F(GpuChoice, TruncatedTokensAreTheHosts) {
  for (const int64_t vocab : {1, 300, 4097, 50000}) expect_truncated(vocab);
}

// Little enough to be run under compute-sanitizer.
TEST_F(GpuChoice, FewTokens) {
  expect_tokens(4097);
  expect_truncated(4097);
}

TEST_F(GpuChoice, AcceptanceIsTheHosts) {
  std::vector<SequenceRows> sequences;
  std::vector<int32_t> fed, chosen, pretended, pages(4, 1);
  for (int s = 0; s < 300; ++s) {
    const int32_t count = 1 + s % 9;
    sequences.push_back({static_cast<int32_t>(fed.size()), count, 40 + count, pages.data()});
    pretended.push_back(s % 4 == 3 ? s / 4 % count : -1);
    for (int32_t row = 0; row < count; ++row) {
      fed.push_back((s * 31 + row * 7) % 1000);
      const int32_t next = (s * 31 + (row + 1) * 7) % 1000;
      chosen.push_back(row == s / 9 % 9 ? (s % 2 == 0 ? ~next : 5000) : next);
    }
  }
  const std::vector<int32_t> positions(fed.size());
  const size_t rows = fed.size();
  std::vector<int32_t> expected_next(rows), expected_lag(sequences.size());
  ref().accept_drafts(chosen.data(), fed, sequences, pretended, expected_next.data(),
                      expected_lag.data());
  Buffer tokens(rows * sizeof(int32_t), set().memory());
  Buffer next(rows * sizeof(int32_t), set().memory());
  Buffer lag(sequences.size() * sizeof(int32_t), set().memory());
  set().memory().upload(tokens.data(), chosen.data(), tokens.size_bytes());
  begin({.token_ids = fed, .positions = positions, .sequences = sequences, .pretended = pretended});
  set().accept_drafts(tokens.as<int32_t>(), fed, sequences, pretended, next.as<int32_t>(),
                      lag.as<int32_t>());
  EXPECT_EQ(read_ints(set(), next, rows), expected_next);
  EXPECT_EQ(read_ints(set(), lag, sequences.size()), expected_lag);
}

}  // namespace
}  // namespace foresail
