// What kernels are told of penalties, biases and minimum length gives the sampler's tokens, counts
// and log probabilities, row after row of a run of drafts.
#include "kernels/token_terms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/ref/ref_kernels.h"
#include "kernels/token_logprobs.h"
#include "runtime/logprobs.h"
#include "runtime/sampling.h"

namespace foresail {
namespace {

constexpr int kVocab = 300;

std::vector<float> random_logits(uint64_t seed) {
  std::vector<float> logits(kVocab);
  for (int i = 0; i < kVocab; ++i)
    logits[i] = static_cast<float>(
        std::floor(40.0 * random_uniform(seed, i, RandomPurpose::kShuffle)) / 8.0 - 1.0);
  if (seed % 3 == 0) logits[seed % kVocab] = NAN;
  return logits;
}

// By hand: 4/2 of the prompt; 6/2 - 2*0.25 - 0.5 of the output; -1*2 - 0.25 - 0.5 of a draft.
TEST(TokenTerms, ChangeALogit) {
  const DrawTerms terms = {.row = 2, .blocked_until = 9, .penalties = {2.0f, 0.5f, 0.25f}};
  const int32_t drafts[] = {7, 8};
  const auto changed = [&](float logit, int32_t token, TokenTerms of_token, int64_t position) {
    return changed_logit(logit, token, of_token, terms, drafts, position);
  };
  EXPECT_EQ(changed(4.0f, 0, {TokenTerms::kInPrompt}, 9), 2.0f);
  EXPECT_EQ(changed(6.0f, 1, {2 * TokenTerms::kOutput}, 9), 2.0f);
  EXPECT_EQ(changed(-1.0f, 8, {}, 9), -2.75f);
  EXPECT_EQ(changed(0.4f, 3, {0, 1.5f}, 9), 0.4f + 1.5f);
  EXPECT_EQ(changed(0.4f, 4, {}, 9), 0.4f);
  EXPECT_EQ(changed(0.4f, 5, {TokenTerms::kBlocked, 100.0f}, 8), -INFINITY);
  EXPECT_EQ(changed(0.4f, 5, {TokenTerms::kBlocked, 100.0f}, 9), 100.4f);
  EXPECT_TRUE(std::isnan(changed(NAN, 4, {}, 9)));
}

// Rows of a request in one call against the sampler, which sees them one after the other.
TEST(TokenTerms, KernelsChooseCountAndTellWhatTheSamplerDoes) {
  const auto kernels = create_ref_kernels(DType::kF32);
  Sampler sampler;
  const std::vector<int32_t> blocked = {4, 9};
  int stood = 0, fell = 0;
  for (uint64_t trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE(trial);
    SamplingParams params{.temperature = trial % 2 == 0 ? 0.0f : 0.8f, .seed = trial};
    if (trial % 3 == 0) params.repetition_penalty = 1.5f;
    if (trial % 4 == 1) params.presence_penalty = 1.0f;
    if (trial % 5 < 3) params.frequency_penalty = trial % 5 == 0 ? -0.5f : 0.75f;
    if (trial % 6 == 2) params.logit_bias = {{11, 4.0f}, {30, -100.0f}, {4, 50.0f}};
    if (trial % 7 == 3) params.top_k = 4;
    if (trial % 8 == 4) params.top_p = 0.8f;
    const auto length = static_cast<int64_t>(20 + trial % 5);
    const int64_t blocked_until = length + static_cast<int64_t>(trial % 4);
    TokenCounts counts;
    std::vector<TokenTerms> table(2 * kVocab);  // of another request, and ours
    TokenTerms* ours = table.data() + kVocab;
    for (int i = 0; i < 8; ++i) {
      const auto token = static_cast<int32_t>(mix_bits(trial * 8 + i) % kVocab);
      if (i < 3) counts.add_prompt(token);
      if (i >= 3) counts.add_output(token);
    }
    for (const auto& [token, count] : counts.counts())
      ours[token].seen = (count.in_prompt ? TokenTerms::kInPrompt : 0) +
                         TokenTerms::kOutput * static_cast<uint32_t>(count.output_count);
    for (const auto& [token, bias] : params.logit_bias) ours[token].bias = bias;
    for (const int32_t token : blocked) ours[token].seen |= TokenTerms::kBlocked;

    // Drafts that are the sampler's own up to somewhere, one of them drawn twice where it can be.
    constexpr int kRows = 4;
    const int right = static_cast<int>(trial % (kRows + 1));
    const int pretended = trial % 9 == 8 ? static_cast<int>(trial % kRows) : -1;
    std::vector<float> logits;
    std::vector<int32_t> fed = {1};
    std::vector<int32_t> expected;
    std::vector<TokenLogprobs> logprobs;
    bool stands = true;
    for (int row = 0; row < kRows; ++row) {
      const std::vector<float> of_row = random_logits(trial + (row % 2 == 0 ? 0 : 1000 * row));
      logits.insert(logits.end(), of_row.begin(), of_row.end());
      std::vector<float> changed = of_row;
      const int32_t drawn =
          sampler.sample(changed, params, counts, length + row,
                         length + row < blocked_until ? blocked : std::span<const int32_t>());
      const int32_t draft = row < right ? drawn : (drawn + 1) % kVocab;
      const int32_t token = row < pretended ? draft : drawn;
      if (row + 1 < kRows) fed.push_back(draft);
      if (!stands) continue;
      expected.push_back(drawn);
      counts.add_output(token);
      logprobs.push_back(LogprobRow(of_row, 5).of(of_row[token]));
      stands = pretended >= 0 ? row < pretended : token == draft;
    }

    std::vector<TokenDraw> draws;
    std::vector<DrawTerms> terms;
    for (int row = 0; row < kRows; ++row) {
      draws.push_back(draw_of(params, length + row));
      terms.push_back({.table_row = 1,
                       .row = row,
                       .pretended = pretended,
                       .top_count = 5,
                       .blocked_until = static_cast<int32_t>(blocked_until),
                       .penalties = penalties_of(params)});
    }
    const std::vector<float> untouched = logits;
    std::vector<int32_t> tokens(kRows);
    std::vector<RowLogprobs> told(kRows, {.chosen = 77.0f});
    kernels->choose_with_terms({logits.data(), DType::kF32, kRows, kVocab, kVocab}, draws,
                               {terms, fed, table.data(), told.data()}, tokens.data());
    EXPECT_EQ(std::memcmp(logits.data(), untouched.data(), logits.size() * sizeof(float)), 0);
    for (size_t row = 0; row < kRows; ++row) {
      if (row >= expected.size()) {
        EXPECT_EQ(told[row].chosen, 77.0f);
        ++fell;
        continue;
      }
      ++stood;
      EXPECT_EQ(without_mark(tokens[row]), expected[row]) << row;
      EXPECT_EQ(told[row].chosen, logprobs[row].chosen);
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(told[row].ids[i], logprobs[row].top[i].first);
        EXPECT_EQ(told[row].values[i], logprobs[row].top[i].second);
      }
    }
    for (int32_t token = 0; token < kVocab; ++token) {
      const auto found = counts.counts().find(token);
      const int outputs = found == counts.counts().end() ? 0 : found->second.output_count;
      EXPECT_EQ(static_cast<int>(ours[token].seen / TokenTerms::kOutput), outputs) << token;
      EXPECT_EQ(table[token].seen, 0u);
    }
  }
  EXPECT_GT(stood, 500);
  EXPECT_GT(fell, 300);
}

// Of rows beside each other, with a mask or without; with terms besides, or none.
TEST(TokenTerms, KernelsDrawUnderMasksAsTheSamplerDoes) {
  const auto kernels = create_ref_kernels(DType::kF32);
  constexpr int kRows = 3;
  const int64_t words = mask_words(kVocab);
  for (uint64_t seed = 1; seed < 200; ++seed) {
    auto below = [state = seed](int32_t bound) mutable {
      return static_cast<int32_t>(mix_bits(++state) % static_cast<uint64_t>(bound));
    };
    SamplingParams params = {.temperature = seed % 3 == 0 ? 0.0f : 0.9f, .seed = seed};
    if (seed % 4 == 1) params.top_k = 4;
    if (seed % 5 == 1) params.presence_penalty = 0.7f;
    // Row 0 has the last mask, row 1 none, row 2 one that allows little: one token, or none at all.
    std::vector<uint64_t> masks(static_cast<size_t>(2 * words), 0);
    const auto allow = [&](int64_t mask, int32_t token) {
      masks[mask * words + token / kMaskBits] |= uint64_t{1} << (token % kMaskBits);
    };
    for (int i = 0; i < kVocab / 3; ++i) allow(1, below(kVocab));
    if (seed % 7 != 0) allow(0, below(kVocab));
    std::vector<TokenTerms> table(kVocab);
    TokenCounts counts;
    for (int i = 0; i < 9; ++i) {
      const int32_t token = below(kVocab);
      table[token].seen += TokenTerms::kOutput;
      counts.add_output(token);
    }
    std::vector<float> logits;
    std::vector<int32_t> expected, tokens(kRows), fed(kRows, 0);
    std::vector<TokenDraw> draws;
    std::vector<DrawTerms> terms;
    Sampler sampler;
    for (int row = 0; row < kRows; ++row) {
      const int32_t mask = row == 0 ? 1 : row == 1 ? -1 : 0;
      std::vector<float> of_row = random_logits(100 * seed + row);
      logits.insert(logits.end(), of_row.begin(), of_row.end());
      const std::span<const uint64_t> allowed =
          mask < 0 ? std::span<const uint64_t>() : std::span(masks).subspan(mask * words, words);
      expected.push_back(sampler.sample(of_row, params, counts, 7, {}, allowed));
      draws.push_back(draw_of(params, 7));
      terms.push_back({.table_row = params.has_penalties() ? 0 : -1,
                       .penalties = penalties_of(params),
                       .mask = mask});
    }
    EXPECT_TRUE(kinds_of(terms).masks);
    kernels->choose_with_terms({logits.data(), DType::kF32, kRows, kVocab, kVocab}, draws,
                               {terms, fed, table.data(), nullptr, masks.data()}, tokens.data());
    for (int row = 0; row < kRows; ++row)
      EXPECT_EQ(without_mark(tokens[row]), expected[row]) << seed << " row " << row;
  }
}

// A row without terms beside others is drawn as it lies, and no table is read or written for it.
TEST(TokenTerms, RowsWithoutAnyAreLeftAlone) {
  const auto kernels = create_ref_kernels(DType::kF32);
  std::vector<float> logits = random_logits(1);
  const TokenDraw draw = draw_of({.temperature = 0.7f, .seed = 3}, 5);
  const MatrixView view = {logits.data(), DType::kF32, 1, kVocab, kVocab};
  int32_t expected = -1, token = -2;
  kernels->choose_tokens(view, {&draw, 1}, nullptr, true, &expected);
  const DrawTerms none;
  const int32_t fed[] = {1};
  EXPECT_EQ(kinds_of({&none, 1}), TermKinds{});
  kernels->choose_with_terms(view, {&draw, 1}, {{&none, 1}, fed, nullptr, nullptr}, &token);
  EXPECT_EQ(token, expected);
}

TEST(TokenTerms, AnInfiniteLogitIsCertain) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {1.0f, inf, -inf, NAN, -2.0f};
  const auto of = [&](float logit) { return LogprobRow(logits, 3).of(logit); };
  EXPECT_EQ(of(inf).chosen, 0.0f);
  EXPECT_EQ(of(1.0f).chosen, -inf);
  EXPECT_EQ(of(-inf).chosen, -inf);
  EXPECT_EQ(of(inf).top, (std::vector<std::pair<int32_t, float>>{{1, 0.0f}, {0, -inf}, {4, -inf}}));
  // Of one finite token too, whatever there is beside it.
  EXPECT_EQ(LogprobRow(std::vector<float>{-inf, 5.0f, NAN}, 0).of(5.0f).chosen, 0.0f);
}

TEST(TokenTerms, LogProbabilitiesAreTheLibrarys) {
  for (uint64_t seed = 1; seed < 30; ++seed) {
    std::vector<float> logits = random_logits(seed);
    double sum = 0.0;
    for (const float logit : logits)
      if (!std::isnan(logit)) sum += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(log_sum_of(logits), std::log(sum), 1e-7);
    std::vector<int32_t> ids(kVocab);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return rank_key(logits[a]) > rank_key(logits[b]);
    });
    EXPECT_EQ(best_tokens(logits, kVocab + 5), ids);
    ids.resize(7);
    EXPECT_EQ(best_tokens(logits, 7), ids);
    EXPECT_TRUE(best_tokens(logits, 0).empty());
  }
  const std::vector<float> nothing = {-INFINITY, NAN};
  EXPECT_TRUE(std::isnan(log_sum_of(nothing)));
}

}  // namespace
}  // namespace foresail
