// Steps launched before the results of the ones before are known, on the GPU: the same tokens, and
// what the host and the device are asked for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/json.h"
#include "engine/engine_bench.h"
#include "engine/engine_harness.h"
#include "engine/pausing_batch.h"
#include "gpu_fixture.h"
#include "unit/checkpoint/temp_folder.h"

namespace foresail {
namespace {

constexpr SpeculativeAlgorithm kDrafters[] = {
    SpeculativeAlgorithm::kNone, SpeculativeAlgorithm::kMtp, SpeculativeAlgorithm::kEagle3};
constexpr int64_t kMostLaunchesPerLayer = 12;    // of passes of up to 32 rows
constexpr int64_t kMostLaunchesOfManyRows = 12;  // of passes of more

EngineOptions options_of(SpeculativeAlgorithm algorithm) {
  EngineOptions options;
  options.model_path = model_path("tales");
  options.device = "cuda";
  options.deterministic = true;
  options.attention_path = "absorbed";
  options.slot_count = options.max_running_requests = 5;
  options.speculative = {.algorithm = algorithm,
                         .draft_model_path = model_path("tales-eagle3"),
                         .steps = 3,
                         .adaptive = false};
  return options;
}

// Greedy and drawn, of several lengths; some end by a token of their own.
std::vector<Request> varied_requests(int count) {
  std::vector<Request> requests = random_requests(17, count, 8192);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i};
    if (i % 4 == 3) request.sampling.top_p = 0.9f;
    request.min_tokens = 0;
    request.max_tokens =
        full_or_brief<int64_t>(30, 7) + full_or_brief<int64_t>(3, 1) * static_cast<int64_t>(i);
    request.ignore_eos = i % 3 != 0;
  }
  return requests;
}

TEST(GpuLaunchAhead, OutputIsThatOfWaiting) {
  for (const SpeculativeAlgorithm algorithm : kDrafters) {
    for (const auto& [graphs, terms] :
         {std::pair(true, false), std::pair(true, true), std::pair(false, true)}) {
      SCOPED_TRACE(
          fmt::format("drafter {} graphs {} terms {}", static_cast<int>(algorithm), graphs, terms));
      EngineOptions options = options_of(algorithm);
      options.disable_cuda_graph = !graphs;
      LoadedModel model(options);
      std::vector<Request> requests = varied_requests(full_or_brief(12, 6));
      if (terms) add_terms(requests);
      for (Request& request : requests)
        if (request.top_logprobs) request.top_logprobs = *request.top_logprobs % kMostRankedTokens;
      options.launch_ahead = false;
      EngineLoop waiting(model, nullptr, options);
      const std::vector<Output> expected = serve(waiting, requests);
      // An end that comes where nobody planned it.
      requests.push_back(requests[1]);
      const size_t end = full_or_brief<size_t>(10, 5);
      requests.back().stop_token_ids = {expected[1].ids[end]};
      requests.back().min_tokens = 0;
      options.launch_ahead = true;
      EngineLoop ahead(model, nullptr, options);
      const std::vector<Output> outputs = serve(ahead, requests);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(outputs[i].ids, expected[i].ids) << "request " << i;
        expect_same_logprobs(outputs[i], expected[i]);
      }
      EXPECT_LE(outputs.back().ids.size(), end + 1);
      EXPECT_TRUE(std::equal(outputs.back().ids.begin(), outputs.back().ids.end(),
                             expected[1].ids.begin()));
      const EngineStats stats = ahead.stats();
      EXPECT_EQ(waiting.stats().launched_ahead, 0);
      EXPECT_GT(stats.launched_ahead, full_or_brief(20, 0));
      EXPECT_EQ(stats.waited_for_draws, 0);
      EXPECT_EQ(stats.chosen_for_logprobs, 0);
      EXPECT_EQ(stats.pages_owned + stats.pages_in_flight, 0);
      EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
    }
  }
}

// With the fastest attention too, where nobody else is in the batch.
TEST(GpuLaunchAhead, ARequestAloneIsTheSameWithoutDeterminism) {
  EngineOptions options = options_of(SpeculativeAlgorithm::kNone);
  options.deterministic = false;
  LoadedModel model(options);
  const std::vector<Request> requests = varied_requests(full_or_brief(6, 3));
  options.launch_ahead = false;
  EngineLoop waiting(model, nullptr, options);
  std::vector<std::vector<int32_t>> expected;
  for (const Request& request : requests) expected.push_back(serve(waiting, {request})[0].ids);
  options.launch_ahead = true;
  EngineLoop ahead(model, nullptr, options);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(serve(ahead, {requests[i]})[0].ids, expected[i]) << "request " << i;
}

// Penalties, biases and log probabilities cost no wait, and a token's 164 bytes where those are
// asked for.
TEST(GpuLaunchAhead, AStepWithTermsIsOneGraphAndAtMostOneWait) {
  for (const SpeculativeAlgorithm algorithm : kDrafters) {
    for (const bool logprobs : {false, true}) {
      SCOPED_TRACE(fmt::format("drafter {} logprobs {}", static_cast<int>(algorithm), logprobs));
      EngineOptions options = options_of(algorithm);
      LoadedModel model(options);
      std::vector<Request> requests = varied_requests(2);
      for (Request& request : requests) {
        request.max_tokens = full_or_brief(200, 18);
        request.ignore_eos = true;
        request.sampling.presence_penalty = 0.5f;
        request.sampling.logit_bias = {{100, 2.0f}};
        if (logprobs) request.top_logprobs = 5;
      }
      EngineLoop loop(model, nullptr, options);
      serve(loop, requests);  // records
      const EngineStats before = loop.stats();
      serve(loop, requests);
      const EngineStats after = loop.stats();
      const int64_t steps = after.steps - before.steps;
      EXPECT_GE(after.launched_ahead - before.launched_ahead,
                full_or_brief(steps * 9 / 10, steps - 6));
      EXPECT_LE(after.device_waits - before.device_waits, steps + 24);
      EXPECT_LE(after.device_replays - before.device_replays, steps + 24);
      const int64_t per_row = 8 + (logprobs ? static_cast<int64_t>(sizeof(RowLogprobs)) : 0);
      // The first proposals come from logits on the host; eight rows of those would be 256 KiB a
      // step.
      EXPECT_LE(after.device_download_bytes - before.device_download_bytes,
                8 * steps * per_row + (1 << 20));
    }
  }
}

// T18. One graph and at most one wait for a step.
TEST(GpuLaunchAhead, AStepIsOneGraphAndAtMostOneWait) {
  for (const SpeculativeAlgorithm algorithm : kDrafters) {
    SCOPED_TRACE(static_cast<int>(algorithm));
    EngineOptions options = options_of(algorithm);
    options.context_length = 512;
    options.max_total_tokens = 5 * 576;
    LoadedModel model(options);
    const BatchBenchOptions bench{
        .batch_size = 2, .context_len = 100, .output_len = full_or_brief(300, 12)};
    bench_engine(model, bench);  // records
    const EngineBenchResult run = bench_engine(model, bench);
    EXPECT_GT(run.steps, full_or_brief(50, 2));
    EXPECT_GE(run.launched_ahead, run.steps - 6);
    EXPECT_LE(run.device.waits, run.steps + 12);
    EXPECT_LE(run.device.replays, run.steps + 24);
    EXPECT_GE(run.device.stretches, run.steps - 1);
    EXPECT_GT(run.device.busy_ns, 0);
    EXPECT_LT(run.device.busy_ns + run.device.idle_ns, 1.1e9 * run.wall_s);
  }
}

// Steps without drafts where there is a drafter: nothing of them visits the host but tokens.
TEST(GpuLaunchAhead, StepsWithoutDraftsAreOneWait) {
  for (const SpeculativeAlgorithm algorithm :
       {SpeculativeAlgorithm::kMtp, SpeculativeAlgorithm::kEagle3}) {
    SCOPED_TRACE(static_cast<int>(algorithm));
    EngineOptions options = options_of(algorithm);
    LoadedModel model(options);
    std::vector<Request> requests = varied_requests(5);
    for (Request& request : requests) {
      request.max_tokens = full_or_brief(200, 18);
      request.ignore_eos = true;
      request.speculative_steps = 0;
    }
    options.launch_ahead = false;
    EngineLoop waiting(model, nullptr, options);
    const std::vector<Output> expected = serve(waiting, requests);
    options.launch_ahead = true;
    EngineLoop ahead(model, nullptr, options);
    std::vector<Output> outputs(requests.size());
    for (size_t i = 0; i < requests.size(); ++i)
      ahead.submit(*ahead.prepare(requests[i]), collect_into(outputs[i]));
    const auto has_begun = [](const Output& output) { return !output.ids.empty(); };
    while (!std::all_of(outputs.begin(), outputs.end(), has_begun) && ahead.step()) {
    }
    const EngineStats before = ahead.stats();  // prefill lets the host make the first proposal
    while (ahead.step()) {
    }
    const EngineStats after = ahead.stats();
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(outputs[i].ids, expected[i].ids);
    EXPECT_EQ(after.drafted, 0);
    EXPECT_EQ(after.waited_for_drafts, 0);
    EXPECT_GE(after.launched_ahead, full_or_brief(190, 8));
    EXPECT_LE(after.device_waits - before.device_waits, after.steps - before.steps + 4);
    // Four bytes of a token, and as many in place of a draft.
    EXPECT_LE(after.device_download_bytes - before.device_download_bytes, 8 * after.output_tokens);
  }
}

// What the drafter proposes after a pause does not depend on how its rows waited: at page size 1
// every row is run at once.
TEST(GpuLaunchAhead, DraftsAfterAPauseAreThoseOfRowsThatDidNotWait) {
  for (const SpeculativeAlgorithm algorithm :
       {SpeculativeAlgorithm::kMtp, SpeculativeAlgorithm::kEagle3}) {
    SCOPED_TRACE(static_cast<int>(algorithm));
    std::vector<std::vector<StepRecord>> records;
    std::vector<int32_t> brief = {3, 0, 2};
    brief.resize(20);  // a pause of more rows than may wait
    brief.insert(brief.end(), {3, 0, 1, 3});
    const std::vector<int32_t> wanted = full_or_brief(drafts_wanted(), brief);
    for (const int page_size : {1, 64}) {
      EngineOptions options = options_of(algorithm);
      options.page_size = page_size;
      options.context_length = 256;
      LoadedModel model(options);
      records.push_back(PausingBatch(model, page_size).run_waiting(wanted));
      PausingBatch ahead(model, page_size);
      records.push_back(ahead.run_ahead(wanted));
      EXPECT_GT(ahead.started(StartOrder::kAhead), 4 * ahead.started(StartOrder::kHostDrafts));
    }
    for (const std::vector<StepRecord>& record : records) EXPECT_EQ(record, records[0]);
  }
}

// T18. Launches of a layer, in the form of DeepSeek-V2-Lite, where the query is one product, and of
// Kimi-K2, where it is two. Experts are large enough to be dealt out (those of models/tales have
// 112 numbers).
TEST(GpuLaunchAhead, LaunchesOfALayer) {
  std::ifstream file(model_path("tales") + "/config.json");
  Json config = Json::parse(file);
  config["moe_intermediate_size"] = 128;
  config["hidden_size"] = 2048;
  for (const bool low_rank : {false, true}) {
    config["q_lora_rank"] = low_rank ? Json(1536) : Json(nullptr);
    const TempFolder folder;
    folder.write("config.json", config.dump());
    EngineOptions options = options_of(SpeculativeAlgorithm::kNone);
    options.model_path = folder.path().string();
    options.load_format = "dummy";
    options.deterministic = false;
    options.slot_count = options.max_running_requests = 64;
    options.context_length = 512;
    options.max_total_tokens = 64 * 576;
    LoadedModel model(options);
    for (const int batch : {2, 3, 8, 32, 33, 64}) {
      SCOPED_TRACE(fmt::format("low rank {}, {} rows", low_rank, batch));
      const BatchBenchOptions bench{.batch_size = batch,
                                    .context_len = full_or_brief(100, 6),
                                    .output_len = full_or_brief(100, 4)};
      bench_engine(model, bench);  // records
      const EngineBenchResult run = bench_engine(model, bench);
      ASSERT_GT(run.device.layers, 0);
      RecordProperty(fmt::format("launches_{}_{}", low_rank ? "low_rank" : "plain", batch),
                     fmt::format("{:.2f}", static_cast<double>(run.device.layer_launches) /
                                               static_cast<double>(run.device.layers)));
      const int64_t most =
          batch <= 32 ? kMostLaunchesPerLayer : kMostLaunchesOfManyRows + (low_rank ? 2 : 0);
      EXPECT_LE(run.device.layer_launches, most * run.device.layers);
    }
  }
}

}  // namespace
}  // namespace foresail
