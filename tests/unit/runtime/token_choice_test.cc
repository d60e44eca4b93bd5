// The arithmetic that the host's sampler shares with devices, beside the library's.
#include "kernels/token_choice.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa_select.h"
#include "kernels/drawable_tokens.h"
#include "kernels/ref/ranked_tokens.h"
#include "kernels/ref/ref_kernels.h"
#include "kernels/token_truncation.h"
#include "runtime/sampling.h"

namespace foresail {
namespace {

TEST(TokenChoice, LogarithmIsTheLibrarysWithinItsLastPlace) {
  const auto expect_close = [](double x) {
    EXPECT_NEAR(plain_log(x), std::log(x), 0x1p-52 * std::abs(std::log(x))) << x;
  };
  for (double x = 0x1p-60; x < 1e3; x *= 1.0173) expect_close(x);
  for (int i = 1; i < 2000; ++i) expect_close(1.0 + (i - 1000) * 1e-5 + 1e-9);
  EXPECT_EQ(plain_log(1.0), 0.0);
  EXPECT_EQ(plain_log(2.0), std::log(2.0));
}

TEST(TokenChoice, NoiseIsTheLibrarysAndBounded) {
  const auto expect_close = [](uint64_t bits) {
    const double v = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
    const double expected = -std::log(-std::log1p(-v));
    if (std::isinf(expected)) {  // 1 - v rounds to zero: never the largest
      EXPECT_EQ(gumbel_noise(bits), expected) << bits;
      return;
    }
    EXPECT_NEAR(gumbel_noise(bits), expected, 4 * 0x1p-52 * std::max(1.0, std::abs(expected)))
        << bits;
    EXPECT_LE(gumbel_noise(bits), (std::countl_zero(bits) + 1) * std::numbers::ln2) << bits;
  };
  for (uint64_t i = 0; i < 100000; ++i) expect_close(mix_bits(i));
  for (int shift = 0; shift < 64; ++shift) expect_close(mix_bits(shift) >> shift);
  for (int shift = 12; shift < 64; ++shift) expect_close(~(mix_bits(shift) >> shift));
  expect_close(0);
  expect_close(~uint64_t{0});
}

TEST(TokenChoice, KernelsChooseWhatTheSamplerDraws) {
  constexpr int kVocab = 1000;
  const auto kernels = create_ref_kernels(DType::kF32);
  Sampler sampler;
  std::vector<int32_t> map(kVocab);
  for (int i = 0; i < kVocab; ++i) map[i] = (7 * i + 3) % 20000;
  for (const float temperature : {0.0f, 0.3f, 1.0f, 1.7f})
    for (int64_t position = 0; position < 200; ++position) {
      std::vector<float> logits(kVocab);
      for (int i = 0; i < kVocab; ++i)
        logits[i] = 8.0f * static_cast<float>(random_uniform(position, i, RandomPurpose::kShuffle));
      if (position % 3 == 0) logits[position] = NAN;
      if (position % 5 == 0) logits[5] = logits[900] = 9.0f;  // the lower id wins
      if (position == 199) std::fill(logits.begin(), logits.end(), -INFINITY);
      const SamplingParams params = {.temperature = temperature, .seed = 11};
      const TokenDraw draw = draw_of(params, position);
      const MatrixView view = {logits.data(), DType::kF32, 1, kVocab, kVocab};
      int32_t token = -1;
      kernels->choose_tokens(view, {&draw, 1}, nullptr, true, &token);
      EXPECT_EQ(token, sampler.sample(logits, params, {}, position));
      kernels->choose_tokens(view, {&draw, 1}, map.data(), false, &token);
      EXPECT_EQ(token, map[coupled_argmax(logits, params, position, map)]);
    }
}

TEST(TokenChoice, ExponentialIsTheLibrarysWithinItsLastPlace) {
  for (double x = -1e-9; x > -699.0; x *= 1.0131)
    EXPECT_NEAR(plain_exp(x), std::exp(x), 0x1p-52 * std::exp(x)) << x;
  EXPECT_EQ(plain_exp(0.0), 1.0);
  EXPECT_EQ(plain_exp(-701.0), 0.0);
  EXPECT_EQ(plain_exp(-INFINITY), 0.0);
}

TEST(TokenChoice, KeysRankAsLogitsDo) {
  const float ascending[] = {-FLT_MAX, -2.5f, -1e-40f, 0.0f, 1e-40f, 3.0f, FLT_MAX, INFINITY};
  for (size_t i = 1; i < std::size(ascending); ++i)
    EXPECT_LT(rank_key(ascending[i - 1]), rank_key(ascending[i])) << i;
  for (const float logit : ascending) EXPECT_EQ(logit_of_key(rank_key(logit)), logit);
  EXPECT_EQ(rank_key(-0.0f), rank_key(0.0f));
  EXPECT_EQ(rank_key(-INFINITY), 0u);
  EXPECT_EQ(rank_key(NAN), 0u);
}

// The oracle ranks all tokens; the sampler finds the head without.
TEST(TokenChoice, TruncatedDrawsAreTheSamplers) {
  constexpr int kVocab = 700;
  const auto kernels = create_ref_kernels(DType::kF32);
  Sampler sampler;
  const SamplingParams shapes[] = {
      {.top_k = 1},        {.top_k = 5},
      {.top_k = 5000},     {.top_p = 0.0f},
      {.top_p = 0.3f},     {.top_p = 0.95f},
      {.top_p = 0.99999f}, {.min_p = 0.05f},
      {.min_p = 1.0f},     {.top_k = 40, .top_p = 0.9f, .min_p = 0.02f}};
  for (const SamplingParams& shape : shapes)
    for (const float temperature : {0.0f, 0.4f, 1.3f})
      for (int64_t position = 0; position < 60; ++position) {
        std::vector<float> logits(kVocab);
        for (int i = 0; i < kVocab; ++i) {
          const double u = random_uniform(position, i, RandomPurpose::kShuffle);
          // Half of the rows have many equal logits.
          logits[i] = static_cast<float>(position % 2 == 0 ? 12.0 * u : std::floor(6.0 * u));
        }
        logits[position] = position % 3 == 0 ? NAN : -INFINITY;
        SamplingParams params = shape;
        params.temperature = temperature;
        params.seed = 5;
        const TokenDraw draw = draw_of(params, position);
        int32_t token = -1;
        kernels->choose_tokens({logits.data(), DType::kF32, 1, kVocab, kVocab}, {&draw, 1}, nullptr,
                               true, &token);
        EXPECT_EQ(token, sampler.sample(logits, params, {}, position))
            << params.top_k << " " << params.top_p << " " << params.min_p << " " << temperature;
      }
}

// Every token of rows as hard as there are: the search for a cut meets its thresholds, ties at
// them, no more tokens than it keeps, infinite and tiny differences.
TEST(TokenChoice, DrawableTokensAreThoseOfTheRankedRow) {
  const auto shaped = [](int shape, int64_t i) {
    const double u = random_uniform(shape, i, RandomPurpose::kShuffle);
    switch (shape) {
      case 0:
        return 8.0 * u;
      case 1:
        return 20.0 * std::pow(u, 8.0);
      case 2:
        return std::floor(40.0 * u);  // ties in and between the bins
      case 3:
        return u < 0.01 ? INFINITY : u;
      case 4:
        return 3e38 * (2.0 * u - 1.0);
      case 5:
        return 1.0 + 1e-7 * std::floor(20.0 * u);
      case 6:
        return u < 0.5 ? -INFINITY : (u < 0.6 ? NAN : -0.0 * (u < 0.8 ? 1.0 : -1.0));
      case 7:
        return static_cast<double>(i);  // each better than all before
      case 8:
        return -0.01 * static_cast<double>(i);
      default:
        return -2.5;  // all equal
    }
  };
  const TokenDraw kinds[] = {{.top_k = 1},
                             {.top_k = 20},
                             {.top_k = 1700},
                             {.top_k = 5000},
                             {.top_p = 0.0f},
                             {.top_p = 1e-6f},
                             {.top_p = 0.5f},
                             {.top_p = 0.95f},
                             {.top_p = 0.9999f},
                             {.top_p = std::nextafter(1.0f, 0.0f)},
                             {.min_p = 1e-30f},
                             {.min_p = 0.1f},
                             {.min_p = 1.0f},
                             {.top_k = 300, .top_p = 0.9f},
                             {.top_k = 300, .min_p = 0.3f},
                             {.top_p = 0.9f, .min_p = 0.05f},
                             {.top_k = 2000, .top_p = 0.99f, .min_p = 1e-3f}};
  for (int shape = 0; shape < 10; ++shape)
    for (const int64_t vocab : {1, 511, 1700, 4099}) {
      std::vector<float> logits;
      for (int64_t i = 0; i < vocab; ++i) logits.push_back(static_cast<float>(shaped(shape, i)));
      for (TokenDraw draw : kinds)
        for (const double temperature : {1e-30, 0.05, 0.8, 7.0, 1e30}) {
          draw.inverse_temperature = 1.0 / temperature;
          const DrawableTokens drawable(logits, draw);
          std::vector<int32_t> ids;
          for (int32_t i = 0; i < vocab; ++i)
            if (drawable.contains(logits[i], i)) ids.push_back(i);
          ASSERT_EQ(ids, ranked_drawable_tokens(logits, draw))
              << "shape " << shape << " vocab " << vocab << " temperature " << temperature
              << " top-k " << draw.top_k << " top-p " << draw.top_p << " min-p " << draw.min_p;
        }
    }
}

TEST(TokenChoice, MassesOfEverySetAreTheSharedOnes) {
  std::vector<float> logits;
  for (int i = 0; i < kMostMasses - 3; ++i)
    logits.push_back(3.5f - 0.09f * static_cast<float>(i % 401));
  logits[5] = NAN;
  logits[6] = -INFINITY;
  logits[7] = -3e38f;
  for (const IsaOps* isa : available_isa_ops())
    for (const double inverse : {0.01, 1.0, 1.25, 40.0, 1e30}) {
      uint64_t masses[kMostMasses];
      int32_t bins[kMostMasses];
      isa->token_masses(logits.data(), std::ssize(logits), 3.5f, inverse, masses, bins);
      for (size_t i = 0; i < logits.size(); ++i) {
        const bool drawn = rank_key(logits[i]) != 0;
        EXPECT_EQ(masses[i], drawn ? token_mass(token_weight(logits[i], 3.5f, inverse)) : 0)
            << isa->name << " " << logits[i] << " " << inverse;
        EXPECT_GE(bins[i], 0);
        EXPECT_LT(bins[i], kMassBins);
        for (size_t j = 0; j < i; ++j)
          if (logits[j] >= logits[i]) {
            EXPECT_LE(bins[j], bins[i]) << isa->name;
          }
      }
    }
}

TEST(TokenChoice, ARowThatIsNoNumberIsMarked) {
  const auto kernels = create_ref_kernels(DType::kF32);
  std::vector<float> logits(10, NAN);
  const MatrixView view = {logits.data(), DType::kF32, 1, 10, 10};
  const TokenDraw draw = draw_of({.temperature = 0.0f}, 3);
  int32_t token = 0;
  kernels->choose_tokens(view, {&draw, 1}, nullptr, true, &token);
  EXPECT_EQ(token, ~0);
  EXPECT_EQ(without_mark(token), 0);
  kernels->choose_tokens(view, {&draw, 1}, nullptr, false, &token);
  EXPECT_EQ(token, 0);
}

TEST(TokenChoice, DraftsStandAsLongAsTheTargetChoseThem) {
  const int32_t fed[] = {1, 20, 21, 22};
  const int32_t all[] = {20, 21, 22, 23}, first[] = {20, 9, 22, 23}, none[] = {8, 21, 22, 23};
  EXPECT_EQ(accept_rows(fed, all, 4, -1), 4);
  EXPECT_EQ(accept_rows(fed, first, 4, -1), 2);
  EXPECT_EQ(accept_rows(fed, none, 4, -1), 1);
  EXPECT_EQ(accept_rows(fed, all, 1, -1), 1);
  EXPECT_EQ(accept_rows(fed, none, 4, 0), 1);
  EXPECT_EQ(accept_rows(fed, none, 4, 2), 3);
  EXPECT_EQ(accept_rows(fed, none, 4, 3), 4);
  const int32_t marked[] = {~20, 9, 22, 23};
  EXPECT_EQ(accept_rows(fed, marked, 4, -1), 2);
}

}  // namespace
}  // namespace foresail
