// What the prefix cache hands out was really computed, and is counted as it was used.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "engine/scripted_loop.h"

namespace foresail {
namespace {

EngineOptions reuse_options(int page_size) {
  EngineOptions options = scripted_options();
  options.page_size = page_size;
  options.context_length = 512;
  options.max_total_tokens = 2048;
  options.chunked_prefill_size = 64;
  return options;
}

// Serves it and expects the right output. The prompt tokens that were found in the cache.
int64_t cached_tokens(EngineLoop& loop, const std::vector<int32_t>& prompt) {
  const Output output = serve(loop, {scripted_request(prompt, 6)})[0];
  EXPECT_EQ(output.ids, continue_text(hashed_token, prompt, 6));
  EXPECT_EQ(output.stats.finish, FinishReason::kLength);
  return output.stats.cached_tokens;
}

// K7: the whole prompt is cached, and its last token is computed all the same.
TEST(PrefixReuse, SamePromptTwice) {
  struct ReuseCase {
    int page_size;
    bool drafter;
    int prompt_len;
    int64_t expected;
  };
  for (const ReuseCase& c :
       {ReuseCase{64, false, 128, 64}, ReuseCase{1, false, 128, 127}, ReuseCase{64, true, 128, 64},
        ReuseCase{1, true, 128, 127}, ReuseCase{1, false, 1, 0}, ReuseCase{1, true, 1, 0},
        ReuseCase{64, true, 129, 128}, ReuseCase{16, true, 16, 0}}) {
    ScriptedLoop scripted(reuse_options(c.page_size), certain(hashed_token));
    if (c.drafter) scripted.use_digest_drafter(often_right(hashed_token, 60));
    const std::vector<int32_t> prompt = scripted_prompt(c.prompt_len);
    EXPECT_EQ(cached_tokens(scripted.loop(), prompt), 0);
    EXPECT_EQ(cached_tokens(scripted.loop(), prompt), c.expected)
        << "page " << c.page_size << " prompt " << c.prompt_len << " drafter " << c.drafter;
  }
}

// K7, T17: a drafter's entry depends on the token after it, so the last shared one is not reused.
TEST(PrefixReuse, AnotherSuccessorCostsADrafterOneEntry) {
  for (const bool drafter : {false, true}) {
    ScriptedLoop scripted(reuse_options(1), certain(hashed_token));
    if (drafter) scripted.use_digest_drafter(often_right(hashed_token, 60));
    std::vector<int32_t> prompt = scripted_prompt(40);
    cached_tokens(scripted.loop(), prompt);
    for (const size_t differs_at : {39u, 20u, 1u}) {
      std::vector<int32_t> other = prompt;
      other[differs_at] = 3;
      const auto shared = static_cast<int64_t>(differs_at);
      EXPECT_EQ(cached_tokens(scripted.loop(), other), drafter ? shared - 1 : shared);
    }
  }
}

// K7: an aborted request leaves what its completed chunks computed.
TEST(PrefixReuse, AfterAnAbort) {
  for (const bool late : {false, true}) {
    EngineOptions options = reuse_options(16);
    options.late_results = late;
    ScriptedLoop scripted(options, certain(hashed_token));
    scripted.use_digest_drafter(often_right(hashed_token, 60));
    EngineLoop& loop = scripted.loop();
    const std::vector<int32_t> prompt = scripted_prompt(256);
    Output output;
    const RequestId id =
        loop.submit(*loop.prepare(scripted_request(prompt, 6)), collect_into(output));
    loop.step();
    loop.step();
    EXPECT_TRUE(loop.abort(id));
    EXPECT_EQ(output.stats.finish, FinishReason::kAborted);
    const int64_t cached = cached_tokens(loop, prompt);
    EXPECT_LE(cached, 128);
    EXPECT_GE(cached, 32);
    expect_idle(loop);
  }
}

// K7: a step that throws leaves nothing of itself, and a row without a number neither.
TEST(PrefixReuse, AfterAFailure) {
  for (const bool late : {false, true}) {
    EngineOptions options = reuse_options(16);
    options.late_results = late;
    int passes_to_failure = 2;
    bool nan = false;
    const Script script = [&](std::span<const int32_t> context, std::span<float> logits) {
      logits[hashed_token(context)] = nan ? NAN : 100.0f;
      if (nan) std::fill(logits.begin(), logits.end(), NAN);
    };
    ScriptedLoop scripted(options, script);
    scripted.use_digest_drafter([&](std::span<const int32_t> context) {
      if (--passes_to_failure == 0) throw std::runtime_error("the second chunk");
      return hashed_token(context);
    });
    EngineLoop& loop = scripted.loop();
    const std::vector<int32_t> thrown = scripted_prompt(256);
    EXPECT_EQ(serve(loop, {scripted_request(thrown, 6)})[0].stats.finish, FinishReason::kFailed);
    EXPECT_LE(cached_tokens(loop, thrown), 64);

    nan = true;
    const std::vector<int32_t> spoilt = scripted_prompt(100, 7);
    EXPECT_EQ(serve(loop, {scripted_request(spoilt, 6)})[0].stats.finish, FinishReason::kFailed);
    nan = false;
    EXPECT_LE(cached_tokens(loop, spoilt), 64);
    expect_idle(loop);
  }
}

// K15: usage adds up to the counters, which only grow; attempts and resumptions count nothing.
TEST(PrefixReuse, UsageAddsUpToTheCounters) {
  EngineOptions options = reuse_options(16);
  options.max_total_tokens = 512;  // too few for all at once
  options.retract_every = 3;
  ScriptedLoop scripted(options, certain(hashed_token));
  scripted.use_digest_drafter(often_right(hashed_token, 60));
  EngineLoop& loop = scripted.loop();
  std::vector<Output> outputs(30);
  int64_t prompt_tokens = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::vector<int32_t> prompt = scripted_prompt(80, i % 3 == 2 ? 2 : 100 + i);
    prompt.resize(80 - i);
    prompt_tokens += static_cast<int64_t>(prompt.size());
    loop.submit(*loop.prepare(scripted_request(prompt, 20)), collect_into(outputs[i]));
  }
  EngineStats before;
  do {
    const EngineStats now = loop.stats();
    EXPECT_GE(now.cached_tokens, before.cached_tokens);
    EXPECT_GE(now.prompt_tokens, before.prompt_tokens);
    EXPECT_GE(now.output_tokens, before.output_tokens);
    EXPECT_GE(now.finished, before.finished);
    before = now;
  } while (loop.step());
  const EngineStats stats = loop.stats();
  GenerationStats sum;
  for (const Output& output : outputs) {
    sum.cached_tokens += output.stats.cached_tokens;
    sum.output_tokens += output.stats.output_tokens;
    sum.prompt_tokens += output.stats.prompt_tokens;
    sum.verify_passes += output.stats.verify_passes;
    sum.accepted += output.stats.accepted;
    EXPECT_EQ(output.stats.output_tokens, static_cast<int64_t>(output.ids.size()));
  }
  EXPECT_GT(stats.retractions, 10);
  EXPECT_GT(stats.cached_tokens, 0);
  EXPECT_EQ(stats.cached_tokens, sum.cached_tokens);
  EXPECT_EQ(stats.prompt_tokens, prompt_tokens);
  EXPECT_EQ(sum.prompt_tokens, prompt_tokens);
  EXPECT_EQ(stats.output_tokens, sum.output_tokens);
  EXPECT_EQ(stats.verify_passes, sum.verify_passes);
  EXPECT_EQ(stats.accepted, sum.accepted);
  expect_idle(loop);
}

// K8: gone within two steps of the abort, whatever it was doing, and its slot serves the next.
TEST(PrefixReuse, AnAbortedRequestHoldsNothingTwoStepsLater) {
  for (const bool late : {false, true}) {
    for (int after = 0; after < 8; ++after) {
      EngineOptions options = reuse_options(16);
      options.late_results = late;
      options.max_running_requests = 2;
      ScriptedLoop scripted(options, certain(hashed_token));
      scripted.use_digest_drafter(often_right(hashed_token, 60));
      EngineLoop& loop = scripted.loop();
      std::vector<Output> outputs(2);
      std::vector<RequestId> ids;
      for (size_t i = 0; i < 2; ++i)
        ids.push_back(loop.submit(*loop.prepare(scripted_request(scripted_prompt(150, i), 300)),
                                  collect_into(outputs[i])));
      for (int step = 0; step < after; ++step) loop.step();
      for (const RequestId id : ids) {
        EXPECT_TRUE(loop.abort(id));
        EXPECT_FALSE(loop.abort(id));
      }
      loop.step();
      loop.step();
      EXPECT_FALSE(loop.step());
      expect_idle(loop);
      EXPECT_EQ(loop.stats().aborted, 2);
      cached_tokens(loop, scripted_prompt(50, 77));
    }
  }
}

}  // namespace
}  // namespace foresail
