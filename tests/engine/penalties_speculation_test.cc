// What shapes a draw is per token: penalties, bias, minimum length and the random numbers are those
// of plain decoding at every position of a run, whoever proposed it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/random.h"
#include "engine/scripted_loop.h"
#include "engine/validate_request.h"

namespace foresail {
namespace {

// Says the same after every context: ids 10, 11, ... with these logits.
Script always(std::vector<float> values) {
  return [values = std::move(values)](std::span<const int32_t>, std::span<float> logits) {
    std::copy(values.begin(), values.end(), logits.begin() + 10);
  };
}

// Twelve ids with logits that depend on the context.
void shifting(std::span<const int32_t> context, std::span<float> logits) {
  uint64_t hash = 5;
  for (const int32_t token : context) hash = mix_bits(hash ^ static_cast<uint64_t>(token));
  for (int i = 0; i < 12; ++i) {
    hash = mix_bits(hash);
    logits[10 + i] = static_cast<float>(hash % 1000) / 250.0f;
  }
}

int32_t best_of(std::span<const int32_t> context) {
  std::vector<float> logits(320, -100.0f);
  shifting(context, logits);
  return argmax(logits);
}

// K6: counting only the last token of each run would give 10 four times first.
TEST(PenaltiesUnderSpeculation, FrequencyCountsEveryTokenOfARun) {
  const std::vector<int32_t> expected = {10, 11, 10, 11, 10, 11, 10, 11};
  for (int steps = 0; steps <= 7; ++steps) {
    for (const bool late : {false, true}) {
      EngineOptions options = scripted_options();
      options.speculative.steps = steps;
      options.late_results = late;
      ScriptedLoop scripted(options, always({1.0f, 0.9f, 0.0f, 0.0f}));
      if (steps > 0) scripted.use_digest_drafter([](auto) { return 10; });
      Request request = scripted_request(scripted_prompt(4), 8);
      request.sampling.frequency_penalty = 0.2f;
      EXPECT_EQ(serve(scripted.loop(), {request})[0].ids, expected) << steps;
    }
  }
}

// K6: any mix of them, greedy and drawn, with retraction rebuilding the counts.
TEST(PenaltiesUnderSpeculation, EveryOptionGivesTheOutputOfPlainDecoding) {
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) {
    Request request = scripted_request(scripted_prompt(1 + i, i), 20);
    for (int32_t& token : request.input_ids) token = 10 + token % 14;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i;
    if (i % 3 == 0) request.sampling.frequency_penalty = 0.7f;
    if (i % 4 == 1) request.sampling.presence_penalty = 1.5f;
    if (i % 5 == 2) request.sampling.repetition_penalty = 1.4f;
    if (i % 6 == 3) request.sampling.logit_bias = {{12, 3.0f}, {15, -100.0f}, {40, 99.0f}};
    if (i % 7 == 4) request.sampling.top_k = 3;
    if (i % 8 == 5) request.sampling.min_p = 0.1f;
    requests.push_back(request);
  }
  EngineOptions options = scripted_options();
  options.max_total_tokens = 1024;
  std::vector<Output> expected;
  {
    ScriptedLoop plain(options, shifting);
    expected = serve(plain.loop(), requests);
  }
  for (const int percent : {0, 60, 100}) {
    ScriptedLoop scripted(options, shifting);
    scripted.use_digest_drafter(often_right(best_of, percent));
    for (const int steps : {1, 3, 7}) {
      options.speculative.steps = steps;
      options.late_results = steps == 3;
      options.retract_every = steps == 7 ? 3 : 0;
      const std::vector<Output> outputs = serve(scripted.restart(options), requests);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(outputs[i].ids, expected[i].ids) << "request " << i << " steps " << steps;
    }
  }
}

// Largest chi-square statistic that chance exceeds once in a million (Wilson and Hilferty 1931).
double chi_square_limit(int degrees) {
  const double k = degrees;
  const double term = 1.0 - 2.0 / (9.0 * k) + 4.7534 * std::sqrt(2.0 / (9.0 * k));
  return k * term * term * term;
}

// Speculation leaves the distribution as it is, at every position of a run.
TEST(SamplingUnderSpeculation, DrawsFromTheExactDistribution) {
  const std::vector<float> values = {2.0f, 1.5f, 1.2f, 0.8f, 0.1f, -0.4f, -1.0f, -2.0f};
  const SamplingParams sampling{.temperature = 0.7f, .top_k = 6, .top_p = 0.97f};
  std::vector<float> logits(320, -100.0f);
  std::copy(values.begin(), values.end(), logits.begin() + 10);
  const Distribution expected = Sampler().distribution(logits, sampling, {});
  ASSERT_GE(expected.tokens.size(), 4u);
  for (const int percent : {0, 100}) {
    EngineOptions options = scripted_options();
    options.max_total_tokens = 2048;
    ScriptedLoop scripted(options, always(values));
    scripted.use_digest_drafter(often_right(
        [](auto context) { return 10 + static_cast<int32_t>(context.size() % 3); }, percent));
    constexpr int kTokens = 8;
    constexpr int kRequests = 4000;
    std::vector<std::map<int32_t, int>> counts(kTokens);
    std::vector<Request> requests(50, scripted_request(scripted_prompt(3), kTokens));
    for (int batch = 0; batch < kRequests / 50; ++batch) {
      for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].sampling = sampling;
        requests[i].sampling.seed = batch * requests.size() + i;
      }
      for (const Output& output : serve(scripted.loop(), requests))
        for (int at = 0; at < kTokens; ++at) ++counts[at][output.ids.at(at)];
    }
    for (const std::map<int32_t, int>& drawn : counts) {
      double statistic = 0.0;
      int total = 0;
      for (size_t i = 0; i < expected.tokens.size(); ++i) {
        const auto found = drawn.find(expected.tokens[i]);
        const int count = found == drawn.end() ? 0 : found->second;
        const double mean = expected.probabilities[i] * kRequests;
        statistic += (count - mean) * (count - mean) / mean;
        total += count;
      }
      EXPECT_EQ(total, kRequests) << "drew what the filters exclude";
      EXPECT_LT(statistic, chi_square_limit(static_cast<int>(expected.tokens.size()) - 1));
    }
    EXPECT_GT(scripted.loop().stats().accepted, 0);
  }
}

TEST(SamplingUnderSpeculation, AllMassOnOneTokenAndNoNumberAtAll) {
  const Script script = [](std::span<const int32_t> context, std::span<float> logits) {
    if (context[0] == 5 && context.size() > 6)
      std::fill(logits.begin(), logits.end(), NAN);
    else
      logits[17] = 1e30f;
  };
  EngineOptions options = scripted_options();
  ScriptedLoop scripted(options, script);
  scripted.use_digest_drafter([](auto) { return 17; });
  Request good = scripted_request({6, 7, 8}, 12);
  good.sampling.temperature = 1.0f;
  Request bad = good;
  bad.input_ids = {5, 7, 8};
  const std::vector<Output> outputs = serve(scripted.loop(), {good, bad, good});
  EXPECT_EQ(outputs[0].ids, std::vector<int32_t>(12, 17));
  EXPECT_EQ(outputs[2].ids, outputs[0].ids);
  EXPECT_EQ(outputs[1].stats.finish, FinishReason::kFailed);
  EXPECT_EQ(outputs[1].endings, 1);
  expect_idle(scripted.loop());
}

// K6, K16: an option is honoured or refused by name, never dropped.
TEST(RequestOptions, OutOfRangeIsRefusedByName) {
  const auto refused = [](auto change) {
    Request request = scripted_request({5, 6}, 4);
    change(request);
    const auto result = validate_request(request, nullptr, 129280);
    return result ? std::string("accepted") : result.error().param;
  };
  EXPECT_EQ(refused([](Request& r) { r.sampling.repetition_penalty = 0.0f; }),
            "repetition_penalty");
  EXPECT_EQ(refused([](Request& r) { r.sampling.presence_penalty = 2.5f; }), "presence_penalty");
  EXPECT_EQ(refused([](Request& r) { r.sampling.frequency_penalty = NAN; }), "frequency_penalty");
  EXPECT_EQ(refused([](Request& r) { r.sampling.min_p = -0.1f; }), "min_p");
  EXPECT_EQ(refused([](Request& r) { r.sampling.top_k = -1; }), "top_k");
  EXPECT_EQ(refused([](Request& r) { r.sampling.logit_bias = {{129280, 1.0f}}; }), "logit_bias");
  EXPECT_EQ(refused([](Request& r) { r.sampling.logit_bias = {{-1, 1.0f}}; }), "logit_bias");
  EXPECT_EQ(refused([](Request& r) { r.sampling.logit_bias = {{5, NAN}}; }), "logit_bias");
  EXPECT_EQ(refused([](Request& r) {
              r.sampling.logit_bias = {{5, 1.0f}, {5, 1.0f}};
            }),
            "logit_bias");
  EXPECT_EQ(refused([](Request& r) { r.sampling.logit_bias = {{129279, 1.0f}}; }), "accepted");
  EXPECT_EQ(refused([](Request& r) { r.input_ids = {129280}; }), "input_ids");
  EXPECT_EQ(refused([](Request& r) { r.input_ids = {-1}; }), "input_ids");
  EXPECT_EQ(refused([](Request& r) { r.input_ids = {129279}; }), "accepted");
  EXPECT_EQ(refused([](Request& r) { r.min_tokens = 5; }), "min_tokens");
  EXPECT_EQ(refused([](Request& r) {
              r.min_tokens = 1;
              r.stop_token_ids = {5};
            }),
            "accepted");
  EXPECT_EQ(refused([](Request& r) { r.speculative_steps = -1; }), "speculative_steps");
}

}  // namespace
}  // namespace foresail
