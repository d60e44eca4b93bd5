#include "runtime/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace foresail {
namespace {

// Largest chi-square statistic for `degrees` of freedom that chance exceeds once in a million
// (Wilson and Hilferty 1931; the normal quantile of 1e-6 is 4.7534).
double chi_square_limit(int degrees) {
  const double k = degrees;
  const double term = 1.0 - 2.0 / (9.0 * k) + 4.7534 * std::sqrt(2.0 / (9.0 * k));
  return k * term * term * term;
}

std::vector<float> test_logits(int vocab) {
  std::vector<float> logits(vocab);
  for (int i = 0; i < vocab; ++i)
    logits[i] = 2.0f * std::sin(1.7f * static_cast<float>(i)) + 0.03f * static_cast<float>(i % 7);
  return logits;
}

// What the documented steps should give, written down independently of the sampler.
std::map<int32_t, double> expected_distribution(std::vector<float> logits,
                                                const SamplingParams& params) {
  std::vector<std::pair<double, int32_t>> ranked;
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i)
    ranked.push_back(
        {std::exp(static_cast<double>(logits[i]) / params.temperature), static_cast<int32_t>(i)});
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  if (params.top_k > 0 && ranked.size() > static_cast<size_t>(params.top_k))
    ranked.resize(params.top_k);
  for (const auto& [weight, id] : ranked) total += weight;
  std::map<int32_t, double> result;
  double mass = 0.0;
  for (const auto& [weight, id] : ranked) {
    if (!result.empty() &&
        (mass >= params.top_p * total || weight < params.min_p * ranked[0].first))
      break;
    result[id] = weight;
    mass += weight;
  }
  for (auto& [id, weight] : result) weight /= mass;
  return result;
}

void expect_drawn_from(const SamplingParams& base) {
  constexpr int kVocab = 40;
  constexpr int kDraws = 200000;
  const auto expected = expected_distribution(test_logits(kVocab), base);
  std::map<int32_t, int> counts;
  Sampler sampler;
  SamplingParams params = base;
  for (int draw = 0; draw < kDraws; ++draw) {
    // Seeds and positions both vary: neither may leave a trace.
    params.seed = static_cast<uint64_t>(draw) / 100;
    std::vector<float> logits = test_logits(kVocab);
    ++counts[sampler.sample(logits, params, {}, draw % 100)];
  }
  double statistic = 0.0;
  for (const auto& [id, count] : counts)
    ASSERT_TRUE(expected.contains(id)) << "drew " << id << ", which the filters exclude";
  for (const auto& [id, probability] : expected) {
    const double mean = probability * kDraws;
    statistic += (counts[id] - mean) * (counts[id] - mean) / mean;
  }
  EXPECT_LT(statistic, chi_square_limit(std::max<int>(1, static_cast<int>(expected.size()) - 1)));
}

TEST(Sampler, DrawsFromTheDocumentedDistribution) {
  expect_drawn_from({.temperature = 1.0f});
  expect_drawn_from({.temperature = 0.6f});
  expect_drawn_from({.temperature = 1.7f, .top_k = 7});
  expect_drawn_from({.temperature = 1.0f, .top_p = 0.7f});
  expect_drawn_from({.temperature = 0.8f, .min_p = 0.2f});
  expect_drawn_from({.temperature = 1.2f, .top_k = 20, .top_p = 0.9f, .min_p = 0.05f});
}

TEST(Sampler, DistributionIsTheDocumentedOne) {
  const SamplingParams params{.temperature = 0.9f, .top_k = 12, .top_p = 0.85f, .min_p = 0.02f};
  const auto expected = expected_distribution(test_logits(40), params);
  std::vector<float> logits = test_logits(40);
  const Distribution got = Sampler().distribution(logits, params, {});
  ASSERT_EQ(got.tokens.size(), expected.size());
  for (size_t i = 0; i < got.tokens.size(); ++i)
    EXPECT_NEAR(got.probabilities[i], expected.at(got.tokens[i]), 1e-9);
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheBest) {
  std::vector<float> logits = {1.0f, 3.0f, 3.0f, std::nanf("")};
  EXPECT_EQ(Sampler().sample(logits, {.temperature = 0.0f}, {}, 0), 1);
  logits = {std::nanf(""), std::nanf("")};
  EXPECT_EQ(Sampler().sample(logits, {.temperature = 0.0f}, {}, 0), 0);
  EXPECT_EQ(Sampler().sample(logits, {.temperature = 1.0f}, {}, 0), 0);
}

TEST(Sampler, PenaltiesBiasAndBlockedTokens) {
  TokenCounts counts;
  counts.add_prompt(0);
  counts.add_output(1);
  counts.add_output(1);
  const SamplingParams params{.temperature = 0.0f,
                              .repetition_penalty = 2.0f,
                              .presence_penalty = 0.5f,
                              .frequency_penalty = 0.25f,
                              .logit_bias = {{3, 1.5f}}};
  std::vector<float> logits = {4.0f, 6.0f, -1.0f, 0.4f};
  const int32_t blocked[] = {3};
  // 0: 4/2 = 2; 1: 6/2 - 2*0.25 - 0.5 = 2; 3: 0.4 + 1.5 = 1.9, blocked here.
  EXPECT_EQ(Sampler().sample(logits, params, counts, 9, blocked), 0);
  EXPECT_FLOAT_EQ(logits[0], 2.0f);
  EXPECT_FLOAT_EQ(logits[1], 2.0f);
  EXPECT_FLOAT_EQ(logits[2], -1.0f);
  counts.remove_output(1);
  counts.remove_output(1);
  logits = {4.0f, 1.9f, -1.0f, 0.4f};
  EXPECT_EQ(Sampler().sample(logits, params, counts, 9), 0);
  EXPECT_FLOAT_EQ(logits[1], 1.9f);
  EXPECT_FLOAT_EQ(logits[3], 1.9f);
}

// A drafter with the target's own logits always proposes what the target draws; one with other
// logits agrees at least (1 - tv) / (1 + tv) of the time, tv the total variation distance.
TEST(CoupledDraft, AgreesAsOftenAsTheBoundSays) {
  const std::vector<float> target = test_logits(40);
  std::vector<float> other = target;
  for (size_t i = 0; i < other.size(); i += 3) other[i] += 0.8f;
  const SamplingParams base{.temperature = 0.8f};
  const auto p = expected_distribution(target, base);
  const auto q = expected_distribution(other, base);
  double tv = 0.0;
  for (const auto& [id, probability] : p) tv += 0.5 * std::abs(probability - q.at(id));
  Sampler sampler;
  int agreed = 0;
  constexpr int kDraws = 50000;
  for (int draw = 0; draw < kDraws; ++draw) {
    SamplingParams params = base;
    params.seed = draw;
    std::vector<float> logits = target;
    const int32_t drawn = sampler.sample(logits, params, {}, 11);
    EXPECT_EQ(coupled_argmax(target, params, 11, {}), drawn);
    agreed += coupled_argmax(other, params, 11, {}) == drawn ? 1 : 0;
  }
  const double rate = static_cast<double>(agreed) / kDraws;
  EXPECT_GT(rate, (1.0 - tv) / (1.0 + tv) - 0.01);
  EXPECT_LT(rate, 1.0 - tv + 0.01);
}

TEST(CoupledDraft, ProposesWhatTheTargetsTruncationLeaves) {
  const std::vector<float> logits = test_logits(40);
  std::vector<int32_t> token_map;
  std::vector<float> target(200, -std::numeric_limits<float>::infinity());
  for (int32_t i = 0; i < 40; ++i) {
    token_map.push_back(5 * i + 1);
    target[token_map.back()] = logits[i];
  }
  // Those with an odd draft id.
  std::vector<uint64_t> allowed(4);
  for (const int32_t token : token_map)
    if (token % 2 == 0) allowed[token / 64] |= uint64_t{1} << token % 64;
  for (const SamplingParams& shape :
       {SamplingParams{.temperature = 1.7f, .top_k = 7}, SamplingParams{.top_p = 0.6f},
        SamplingParams{.temperature = 0.8f, .min_p = 0.2f},
        SamplingParams{.temperature = 1.2f, .top_k = 9, .top_p = 0.8f, .min_p = 0.1f}})
    for (uint64_t seed = 0; seed < 500; ++seed) {
      SamplingParams params = shape;
      params.seed = seed;
      std::vector<float> row = logits;
      EXPECT_EQ(coupled_argmax(logits, params, 5, {}), Sampler().sample(row, params, {}, 5));
      row = target;
      EXPECT_EQ(token_map[coupled_argmax(logits, params, 5, token_map)],
                Sampler().sample(row, params, {}, 5));
      row = target;
      EXPECT_EQ(token_map[coupled_argmax(logits, params, 5, token_map, allowed)],
                Sampler().sample(row, params, {}, 5, {}, allowed));
    }
}

TEST(CoupledDraft, UsesTheNoiseOfTheTargetId) {
  const std::vector<int32_t> token_map = {7, 3, 39};
  const std::vector<float> draft = {0.3f, 0.1f, 0.2f};
  std::vector<float> target(40, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < draft.size(); ++i) target[token_map[i]] = draft[i];
  Sampler sampler;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const SamplingParams params{.temperature = 1.0f, .seed = seed};
    std::vector<float> logits = target;
    EXPECT_EQ(token_map[coupled_argmax(draft, params, 5, token_map)],
              sampler.sample(logits, params, {}, 5));
  }
}

}  // namespace
}  // namespace foresail
