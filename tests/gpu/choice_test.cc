// Tokens chosen and drafts accepted on the GPU are the host's, bit for bit, and so are counts and
// log probabilities.
#include <cmath>
#include <cstring>

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
    // As a draft head's reduced vocabulary.
    std::vector<int32_t> map(vocab);
    for (int64_t i = 0; i < vocab; ++i) map[i] = static_cast<int32_t>(i * 5 / 4 + 2);
    Buffer device_map(vocab * sizeof(int32_t), set().memory());
    set().memory().upload(device_map.data(), map.data(), device_map.size_bytes());
    const auto compare = [&](const std::vector<TokenDraw>& draws, const std::string& what) {
      const Copy device_logits = copy(logits);
      Buffer tokens(kRows * sizeof(int32_t), set().memory());
      begin({.draws = draws});
      for (const bool mapped : {false, true}) {
        std::vector<int32_t> expected(kRows);
        ref().choose_tokens(logits, draws, mapped ? map.data() : nullptr, !mapped, expected.data());
        set().choose_tokens(device_logits, draws, mapped ? device_map.as<int32_t>() : nullptr,
                            !mapped, tokens.as<int32_t>());
        EXPECT_EQ(read_ints(set(), tokens, kRows), expected)
            << vocab << " " << what << " " << mapped;
      }
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

  // Requests of one row and of several, whose drafts stand up to somewhere, with and without terms.
  void expect_changed(int64_t vocab, uint64_t seed) {
    constexpr int kRequests = 13;
    auto below = [state = seed](int64_t bound) mutable {
      return static_cast<int32_t>(mix_bits(++state) % static_cast<uint64_t>(bound));
    };
    std::vector<DrawTerms> terms;
    std::vector<TokenDraw> draws;
    for (int request = 0; request < kRequests; ++request) {
      const int count = 1 + request % 5;
      const TokenDraw drawn = {.seed = seed,
                               .inverse_temperature = request % 3 == 0 ? 0.0 : 0.7,
                               .position = 40,
                               .top_k = request % 4 == 1 ? 7 : 0,
                               .top_p = request % 6 == 2 ? 0.9f : 1.0f,
                               .min_p = request % 7 == 3 ? 0.02f : 0.0f};
      const DrawTerms of_request = {
          .table_row = request % 6 == 5 ? -1 : kRequests - 1 - request,
          .pretended = request % 8 == 7 ? below(count) : -1,
          .top_count =
              request % 3 == 2 ? below(kMostRankedTokens + 1) : (request % 5 == 4 ? 0 : -1),
          .blocked_until = 40 + request % 4,
          .penalties = {request % 2 == 0 ? 1.0f : 1.3f, 0.25f * static_cast<float>(request % 3),
                        0.5f - 0.25f * static_cast<float>(request % 4)}};
      for (int row = 0; row < count; ++row) {
        draws.push_back(drawn);
        draws.back().position += row;
        terms.push_back(of_request);
        terms.back().row = row;
      }
    }
    const auto rows = static_cast<int64_t>(terms.size());
    // With odd seeds every third row has a mask, which allow a third, a token or two, or nothing.
    std::vector<uint64_t> masks;
    for (size_t row = 0; row < terms.size(); ++row) {
      if (draws[row].seed % 2 == 0 || row % 3 != 1) continue;
      terms[row].mask = static_cast<int32_t>(masks.size() / mask_words(vocab));
      masks.resize(masks.size() + mask_words(vocab));
      const int64_t allowed = row % 4 == 0 ? vocab / 3 : row % 4;
      for (int64_t i = 0; i < allowed; ++i) {
        const int32_t token = below(vocab);
        masks[terms[row].mask * mask_words(vocab) + token / kMaskBits] |= uint64_t{1}
                                                                          << (token % kMaskBits);
      }
    }
    Tensor logits = Tensor(DType::kF32, rows, vocab, 3).randomize(seed + vocab, 8.0f);
    for (int64_t i = 0; i < vocab; ++i) {
      logits.set(3, i, std::floor(static_cast<float>(logits.at(3, i))));  // many equal ones
      logits.set(5, i, i == 0 ? 1.0f : -INFINITY);
    }
    for (int64_t row = 0; row < rows; row += 4) logits.set(row, row % vocab, NAN);
    std::vector<TokenTerms> table(kRequests * vocab);
    for (size_t i = 0; i < table.size(); i += 1 + below(9))
      table[i] = {static_cast<uint32_t>(below(24)), below(3) == 0 ? 0.5f * below(20) - 5.0f : 0.0f};

    // A row's draft is what the row before draws, or another token; what a row draws depends on the
    // drafts before it.
    std::vector<int32_t> fed(terms.size(), 1), expected(terms.size());
    std::vector<TokenTerms> counted;
    std::vector<RowLogprobs> told;
    for (int pass = 0; pass < 5; ++pass) {
      counted = table;
      told.assign(terms.size(), {.chosen = 77.0f});
      ref().choose_with_terms(
          logits, draws, {terms, fed, counted.data(), told.data(), masks.data()}, expected.data());
      for (size_t row = 1; row < fed.size(); ++row)
        if (terms[row].row == pass + 1)
          fed[row] = static_cast<int32_t>(
              (without_mark(expected[row - 1]) + (row % 7 == 3 ? 1 : 0)) % vocab);
    }
    Memory& memory = set().memory();
    const auto placed_copy = [&](const auto& values) {
      const size_t bytes = values.size() * sizeof(values[0]);
      Buffer buffer(bytes, memory);
      memory.upload(buffer.data(), values.data(), bytes);
      return buffer;
    };
    const std::vector<RowLogprobs> untold(terms.size(), {.chosen = 77.0f});
    const Buffer device_table = placed_copy(table), device_told = placed_copy(untold);
    const Buffer device_masks = placed_copy(masks.empty() ? std::vector<uint64_t>{0} : masks);
    Buffer tokens(terms.size() * sizeof(int32_t), memory);
    const Copy device_logits = copy(logits);
    const std::vector<int32_t> positions(terms.size());
    begin({.token_ids = fed, .positions = positions, .draws = draws, .terms = terms});
    set().choose_with_terms(device_logits, draws,
                            {terms, fed, device_table.as<TokenTerms>(),
                             device_told.as<RowLogprobs>(), device_masks.as<uint64_t>()},
                            tokens.as<int32_t>());
    SCOPED_TRACE(fmt::format("{} {}", vocab, seed));
    EXPECT_EQ(read_ints(set(), tokens, terms.size()), expected);
    std::vector<TokenTerms> got_table(table.size());
    memory.download(got_table.data(), device_table.data(), table.size() * sizeof(TokenTerms));
    EXPECT_EQ(std::memcmp(got_table.data(), counted.data(), table.size() * sizeof(TokenTerms)), 0);
    EXPECT_NE(std::memcmp(table.data(), counted.data(), table.size() * sizeof(TokenTerms)), 0);
    std::vector<RowLogprobs> got(terms.size());
    memory.download(got.data(), device_told.data(), got.size() * sizeof(RowLogprobs));
    int with_logprobs = 0;
    for (size_t row = 0; row < got.size(); ++row) {
      EXPECT_EQ(std::memcmp(&got[row].chosen, &told[row].chosen, sizeof(float)), 0)
          << row << " " << got[row].chosen << " " << told[row].chosen;
      if (told[row].chosen == 77.0f) continue;
      ++with_logprobs;
      for (int i = 0; i < std::min<int64_t>(terms[row].top_count, vocab); ++i) {
        EXPECT_EQ(got[row].ids[i], told[row].ids[i]) << row << " " << i;
        EXPECT_EQ(std::memcmp(&got[row].values[i], &told[row].values[i], sizeof(float)), 0) << row;
      }
    }
    EXPECT_GT(with_logprobs, 5);
  }
};

TEST_F(GpuChoice, TokensAreTheHosts) {
  for (const int64_t vocab : {1, 31, 4096, 4097, 129280}) expect_tokens(vocab);
}

TEST_F(GpuChoice, TruncatedTokensAreTheHosts) {
  for (const int64_t vocab : {1, 300, 4097, 50000}) expect_truncated(vocab);
}

TEST_F(GpuChoice, ChangedTokensCountsAndLogprobsAreTheHosts) {
  for (const int64_t vocab : {1, 31, 4097, 50000})
    for (const uint64_t seed : {1, 2}) expect_changed(vocab, seed);
}

// Little enough to be run under compute-sanitizer.
TEST_F(GpuChoice, FewTokens) {
  expect_changed(4097, 5);
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
