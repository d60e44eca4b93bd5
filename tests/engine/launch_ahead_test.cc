// Steps launched before the results of the ones before are known: the same output bit for bit, the
// ledger exact, and the host's order where a step needs the host.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/device_like_kernels.h"
#include "engine/digest_kernels.h"
#include "engine/draftings.h"
#include "engine/scripted_loop.h"

namespace foresail {
namespace {

constexpr int kDraftingCount = kHeadDraftings + 1;  // and without drafts
constexpr int kQueuingCount = kHeadDraftings;

// Requests that a device can draw for, with and without ends of their own.
std::vector<Request> drawable_requests(uint64_t seed, int count) {
  std::vector<Request> requests = random_requests(seed, count);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.sampling = {.temperature = request.sampling.temperature, .seed = request.sampling.seed};
    if (i % 3 == 2) request.sampling.top_p = 0.9f;
    request.min_tokens = 0;
    request.max_tokens += 20;
  }
  return requests;
}

// A model on the kernels that stand in for a device.
struct Device {
  explicit Device(const EngineOptions& options) : model(options, {}, make_kernels()) {}
  std::unique_ptr<KernelSet> make_kernels() {
    auto made = std::make_unique<DeviceLikeKernels>();
    kernels = made.get();
    return made;
  }
  DeviceLikeKernels* kernels = nullptr;
  LoadedModel model;
};

void expect_same_ids(const std::vector<Output>& outputs, const std::vector<Output>& expected) {
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].ids, expected[i].ids) << "request " << i;
    EXPECT_EQ(outputs[i].stats.finish, expected[i].stats.finish) << "request " << i;
    EXPECT_EQ(outputs[i].endings, 1) << "request " << i;
    expect_same_logprobs(outputs[i], expected[i]);
  }
}

class LaunchAhead : public testing::TestWithParam<DraftingCase> {};

TEST_P(LaunchAhead, OutputIsThatOfWaiting) {
  const auto [index, page_size, backend] = GetParam();
  const Drafting& drafting = kDraftings[index];
  EngineOptions options = tiny_options(drafting, page_size);
  options.attention_backend = backend;
  Device device(options);
  for (int steps = 1; steps <= 6; ++steps) {
    SCOPED_TRACE(fmt::format("{} page {} steps {}", drafting.name, page_size, steps));
    std::vector<Request> requests = drawable_requests(300 * index + 10 * page_size + steps, 8);
    if (steps == 4) requests[3].speculative_steps = 1;  // some steps have unequal rows
    if (steps == 5) requests[2].stop_token_ids = {40, 41, 42, 43, 44, 45, 46, 47, 48, 49};
    if (steps != 4 && steps % 3 != 0) add_terms(requests);
    options.speculative.steps = steps;
    options.chunked_prefill_size = steps % 2 == 0 ? 7 : 2048;
    options.retract_every = steps == 2 ? 3 : 0;
    options.seed_schedule = steps == 5 ? 9 : 0;
    options.max_running_requests = steps == 6 ? 1 : 5;
    options.launch_ahead = false;
    EngineLoop waiting(device.model, nullptr, options);
    const std::vector<Output> expected = serve(waiting, requests);
    EXPECT_EQ(waiting.stats().launched_ahead, 0);
    options.launch_ahead = true;
    options.late_results = steps == 3;
    EngineLoop ahead(device.model, nullptr, options);
    options.late_results = false;
    for (const bool warm : {false, true}) {
      SCOPED_TRACE(warm ? "warm" : "cold");
      expect_same_ids(serve(ahead, requests), expected);
      expect_idle(ahead);
    }
    EXPECT_GT(ahead.stats().launched_ahead, 10);
  }
  EXPECT_GT(device.kernels->carried_rows(), 100);
  EXPECT_EQ(device.kernels->most_downloads_under_way(), 2u);
}

INSTANTIATE_TEST_SUITE_P(All, LaunchAhead, drafting_cases(kDraftingCount, {1, 16}),
                         drafting_case_name);

// Adaptive depth goes up and down, to none and back, whatever the clock says.
TEST(LaunchAheadDepth, AdaptiveDepthChangesNoToken) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp, 16);
  options.speculative.steps = 4;
  Device device(options);
  const std::vector<Request> requests = drawable_requests(5, 8);
  options.launch_ahead = false;
  EngineLoop waiting(device.model, nullptr, options);
  const std::vector<Output> expected = serve(waiting, requests);
  options.launch_ahead = options.speculative.adaptive = true;
  EngineLoop ahead(device.model, nullptr, options);
  for (int round = 0; round < 5; ++round) expect_same_ids(serve(ahead, requests), expected);
  expect_idle(ahead);
}

// One request alone, without an engine: launched ahead too, to the last position of the context.
TEST(LaunchAheadAlone, OutputIsThatOfTheHost) {
  for (int index = 0; index < kDraftingCount; ++index) {
    SCOPED_TRACE(kDraftings[index].name);
    EngineOptions options = tiny_options(kDraftings[index], 16);
    options.speculative.steps = 3;
    LoadedModel host_model(options);
    Device device(options);
    TextGenerator host(host_model, nullptr), ahead(device.model, nullptr);
    std::vector<Request> requests = drawable_requests(44 + index, 6);
    add_terms(requests);
    requests[2].top_logprobs = kMostRankedTokens + 1;  // the host draws
    requests[3].speculative_steps = 0;
    requests[4].stop_token_ids = {40, 41, 42, 43, 44, 45, 46, 47, 48, 49};
    requests[5].max_tokens = 256 - static_cast<int64_t>(requests[5].input_ids.size());
    requests[5].ignore_eos = true;
    for (const Request& request : requests) {
      Output expected, output;
      const auto run = [&](TextGenerator& generator, Output& into) {
        into.stats = generator.generate(request.input_ids, request,
                                        [&](const Event& e) { collect_into(into)(e, into.stats); });
      };
      run(host, expected);
      run(ahead, output);
      EXPECT_EQ(output.ids, expected.ids);
      expect_same_logprobs(output, expected);
      EXPECT_EQ(output.stats.finish, expected.stats.finish);
      EXPECT_EQ(output.stats.drafted_at, expected.stats.drafted_at);
      EXPECT_EQ(output.stats.accepted_at, expected.stats.accepted_at);
    }
    EXPECT_GT(device.kernels->carried_rows(), 100);
  }
}

// Acceptance that is pretended depends on where in the text it happens: the host has to know that
// although it does not know the tokens.
TEST(LaunchAheadSimulated, OutputIsThatOfWaiting) {
  for (int index = 0; index < kQueuingCount; ++index) {
    for (const double accept_length : {1.0, 2.6, 4.0}) {
      SCOPED_TRACE(fmt::format("{} {}", kDraftings[index].name, accept_length));
      EngineOptions options =
          tiny_options(kDraftings[index].golden, kDraftings[index].algorithm, 16);
      options.speculative.steps = 3;
      options.speculative.simulate_accept_length = accept_length;
      Device device(options);
      // Both plan ahead, so that both verify as many drafts near the ends.
      options.late_results = true;
      std::vector<Request> requests = drawable_requests(80 + index, 5);
      if (accept_length > 2.0) add_terms(requests);
      options.launch_ahead = false;
      EngineLoop waiting(device.model, nullptr, options);
      const std::vector<Output> expected = serve(waiting, requests);
      options.launch_ahead = true;
      EngineLoop ahead(device.model, nullptr, options);
      const std::vector<Output> outputs = serve(ahead, requests);
      expect_same_ids(outputs, expected);
      for (size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_EQ(outputs[i].stats.drafted_at, expected[i].stats.drafted_at);
        EXPECT_EQ(outputs[i].stats.accepted_at, expected[i].stats.accepted_at);
      }
      EXPECT_GT(ahead.stats().launched_ahead, 5);
    }
  }
}

// Each reason to wait, alone, and what runs beside it.
TEST(LaunchAheadOrder, StepsThatNeedTheHostWaitAndAreCounted) {
  const auto run = [](const Drafting& drafting, const auto& change) {
    EngineOptions options = tiny_options(drafting.golden, drafting.algorithm, 16);
    options.speculative.steps = 3;
    Device device(options);
    std::vector<Request> requests = drawable_requests(70, 3);
    for (Request& request : requests) {
      request.max_tokens = 30;
      request.ignore_eos = true;
    }
    change(requests[1]);
    options.launch_ahead = false;
    EngineLoop waiting(device.model, nullptr, options);
    const std::vector<Output> expected = serve(waiting, requests);
    options.launch_ahead = true;
    EngineLoop ahead(device.model, nullptr, options);
    expect_same_ids(serve(ahead, requests), expected);
    expect_idle(ahead);
    return ahead.stats();
  };
  const auto short_lived = [](Request& request) { request.max_tokens = 6; };
  EngineStats stats = run(kDraftings[0], [&](Request& r) {
    short_lived(r);
    r.top_logprobs = kMostRankedTokens + 1;
  });
  EXPECT_GT(stats.waited_for_prefill, 0);
  EXPECT_GT(stats.waited_for_draws, 0);
  EXPECT_GT(stats.launched_ahead, 0);
  EXPECT_EQ(stats.waited_for_scaled_queries, 0);
  stats = run(kDraftings[0], [&](Request& r) {
    short_lived(r);
    r.prompt_top_logprobs = 1;  // its prefill waits anyway
  });
  EXPECT_EQ(stats.waited_for_draws, 0);
  EXPECT_GT(stats.chosen_for_logprobs, 0);
  EXPECT_GT(stats.launched_ahead, 0);
  // What changes logits, and the log probabilities of what is drawn, are the kernels' to know.
  stats = run(kDraftings[0], [&](Request& r) {
    short_lived(r);
    r.top_logprobs = kMostRankedTokens;
    r.sampling.presence_penalty = 0.5f;
    r.sampling.logit_bias = {{5, 2.0f}};
  });
  EXPECT_EQ(stats.waited_for_draws, 0);
  EXPECT_EQ(stats.chosen_for_logprobs, 0);
  EXPECT_GT(stats.launched_ahead, 0);
  stats = run(kDraftings[0], [&](Request& r) {
    r.ignore_eos = false;
    r.min_tokens = 10;
  });
  EXPECT_EQ(stats.waited_for_draws, 0);
  EXPECT_GT(stats.launched_ahead, 0);
  stats = run(kDraftings[0], [&](Request& r) {
    short_lived(r);
    r.speculative_steps = 1;
  });
  EXPECT_GT(stats.waited_for_unequal_rows, 0);
  EXPECT_EQ(stats.waited_for_draws, 0);
  EXPECT_GT(stats.launched_ahead, 0);
  stats = run({"ngram", "g13_v3_mtp", SpeculativeAlgorithm::kNgram}, short_lived);
  EXPECT_GT(stats.waited_for_drafts, 0);
  EXPECT_EQ(stats.launched_ahead, 0);
  // Queries scaled by their position.
  stats = run({"scaled", "g09_mistral4", SpeculativeAlgorithm::kNone}, short_lived);
  EXPECT_GT(stats.waited_for_scaled_queries, 0);
  EXPECT_EQ(stats.launched_ahead, 0);
}

TEST(LaunchAheadAborts, LeaveOthersUnchangedAndTheLedgerBalanced) {
  for (int index = 0; index < kDraftingCount; ++index) {
    EngineOptions options = tiny_options(kDraftings[index].golden, kDraftings[index].algorithm, 16);
    options.speculative.steps = 3;
    Device device(options);
    std::vector<Request> requests = drawable_requests(3, 12);
    add_terms(requests);
    EngineLoop undisturbed(device.model, nullptr, options);
    const std::vector<Output> expected = serve(undisturbed, requests);
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(fmt::format("{} seed {}", kDraftings[index].name, seed));
      options.retract_every = seed % 3 == 0 ? 3 : 0;
      EngineLoop loop(device.model, nullptr, options);
      expect_aborts_disturb_nobody(loop, requests, expected, seed, 4);
      expect_idle(loop);
    }
  }
}

// A pass fails while the step before it is under way: that one's results still count.
TEST(LaunchAheadFailures, AFailedStepEndsItsRequestsAndNoOthers) {
  for (int index = 0; index < kDraftingCount; ++index) {
    EngineOptions options = tiny_options(kDraftings[index].golden, kDraftings[index].algorithm, 16);
    options.speculative.steps = 3;
    Device device(options);
    std::vector<Request> requests = drawable_requests(9, 9);
    add_terms(requests);
    EngineLoop undisturbed(device.model, nullptr, options);
    const std::vector<Output> expected = serve(undisturbed, requests);
    for (const int passes : {20, 21, 22, 23, 24, 25}) {
      SCOPED_TRACE(fmt::format("{} pass {}", kDraftings[index].name, passes));
      EngineLoop loop(device.model, nullptr, options);
      device.kernels->fail_in(passes);
      const std::vector<Output> outputs = serve(loop, requests);
      int failed = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(outputs[i].endings, 1);
        if (outputs[i].stats.finish != FinishReason::kFailed) {
          EXPECT_EQ(outputs[i].ids, expected[i].ids);
          continue;
        }
        ++failed;
        EXPECT_EQ(outputs[i].ids,
                  std::vector<int32_t>(expected[i].ids.begin(),
                                       expected[i].ids.begin() + outputs[i].ids.size()));
      }
      EXPECT_GT(failed, 0);
      EXPECT_LE(failed, options.max_running_requests);
      EXPECT_EQ(loop.stats().failed, failed);
      expect_idle(loop);
    }
  }
}

// Found out one step late: what ran behind it is of no consequence.
TEST(LaunchAheadFailures, ARequestWithoutANumberInItsLogitsFailsAlone) {
  for (const int index : {0, 3}) {
    EngineOptions options = tiny_options(kDraftings[index].golden, kDraftings[index].algorithm, 16);
    options.speculative.steps = 2;
    options.max_total_tokens = 2048;
    options.disable_radix_cache = true;
    Device device(options);
    std::vector<Request> requests = drawable_requests(31, 4);
    for (Request& request : requests) request.ignore_eos = true;
    EngineLoop undisturbed(device.model, nullptr, options);
    const std::vector<Output> expected = serve(undisturbed, requests);
    EngineLoop loop(device.model, nullptr, options);
    std::vector<Output> outputs(requests.size());
    for (size_t i = 0; i < requests.size(); ++i)
      loop.submit(*loop.prepare(requests[i]), collect_into(outputs[i]));
    bool spoilt = false;
    while (loop.step()) {
      if (spoilt || outputs[0].ids.size() < 3) continue;
      const int32_t page = loop.scheduler().cache().table().row(SlotId{0})[0];
      const LatentCache& cache = device.model.store().layers()[0];
      static_cast<float*>(
          cache.data)[page * cache.page_size * (cache.latent_dim + cache.rope_dim)] = NAN;
      spoilt = true;
    }
    int failed = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(outputs[i].endings, 1);
      failed += outputs[i].stats.finish == FinishReason::kFailed;
      if (outputs[i].stats.finish != FinishReason::kFailed) {
        EXPECT_EQ(outputs[i].ids, expected[i].ids);
      }
    }
    EXPECT_EQ(failed, 1);
    EXPECT_EQ(loop.stats().failed, 1);
    expect_idle(loop);
  }
}

// Plain decoding where every cached row is checked at every read: pages that run out, retraction,
// shared prefixes, ends that are found late.
TEST(LaunchAheadDigest, NoPassEverReadsARowOfAnotherText) {
  for (const int page_size : {1, 16}) {
    EngineOptions options = scripted_options();
    options.model_path = golden_path("g13_v3_mtp");
    options.page_size = page_size;
    options.max_total_tokens = 384;
    LoadedModel model(
        options, {},
        std::make_unique<DeviceLike<DigestKernels>>(
            certain(hashed_token), std::make_shared<KnownContexts>(), options.context_length));
    std::vector<Request> requests;
    std::vector<std::vector<int32_t>> expected;
    const std::vector<int32_t> shared = scripted_prompt(70, 4);
    for (int i = 0; i < 10; ++i) {
      std::vector<int32_t> prompt(shared.begin(), shared.begin() + (i % 2 == 0 ? 0 : 20 + 5 * i));
      const std::vector<int32_t> tail = scripted_prompt(1 + 3 * i, 50 + i);
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      Request request = scripted_request(prompt, 5 + 4 * i);
      expected.push_back(continue_text(hashed_token, prompt, request.max_tokens));
      if (i % 3 == 0) {  // ends by a token of its own
        const int64_t stop = 2 + i;
        request.stop_token_ids = {expected.back()[stop]};
        const auto end =
            std::find(expected.back().begin(), expected.back().end(), request.stop_token_ids[0]);
        expected.back().erase(end + 1, expected.back().end());
      }
      requests.push_back(std::move(request));
    }
    for (int round = 0; round < 6; ++round) {
      SCOPED_TRACE(fmt::format("page {} round {}", page_size, round));
      options.retract_every = round % 3 == 2 ? 3 : 0;
      options.chunked_prefill_size = round % 2 == 0 ? 2048 : 16;
      options.seed_schedule = round;
      EngineLoop loop(model, nullptr, options);
      for (const bool warm : {false, true}) {
        const std::vector<Output> outputs = serve(loop, requests);
        for (size_t i = 0; i < requests.size(); ++i)
          EXPECT_EQ(outputs[i].ids, expected[i]) << "request " << i << (warm ? " warm" : " cold");
        expect_idle(loop);
      }
      EXPECT_GT(loop.stats().launched_ahead, 10);
    }
  }
}

}  // namespace
}  // namespace foresail
