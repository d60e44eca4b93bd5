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

constexpr int64_t kMostLaunchesPerLayer = 12;    // of passes of up to 32 rows
constexpr int64_t kMostLaunchesOfManyRows = 12;  // of passes of more

EngineOptions options_of(SpeculativeAlgorithm algorithm) {
  EngineOptions options;
  options.model_path = model_path("tales");
  options.device = "cuda";
  options.deterministic = true;
  options.attention_path = "absorbed";
  options.slot_count = options.max_running_requests = full_or_brief(5, 2);
  options.speculative = {.algorithm = algorithm,
                         .draft_model_path = model_path("tales-eagle3"),
                         .steps = full_or_brief(3, 2),
                         .adaptive = false};
  return options;
}

// One test for each: under compute-sanitizer every one is a process of its own.
class GpuLaunchAhead : public testing::TestWithParam<SpeculativeAlgorithm> {};
class GpuLaunchAheadHeads : public GpuLaunchAhead {};
INSTANTIATE_TEST_SUITE_P(Drafters, GpuLaunchAhead, testing::ValuesIn(kDrafters), drafter_name);
INSTANTIATE_TEST_SUITE_P(Drafters, GpuLaunchAheadHeads,
                         testing::Values(SpeculativeAlgorithm::kMtp, SpeculativeAlgorithm::kEagle3),
                         drafter_name);

// Greedy and drawn, of several lengths; some end by a token of their own.
std::vector<Request> varied_requests(int count) {
  std::vector<Request> requests = random_requests(17, count, 8192);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i};
    if (i % 4 == 3) request.sampling.top_p = 0.9f;
    request.min_tokens = 0;
    request.max_tokens = full_or_brief<int64_t>(30 + 3 * static_cast<int64_t>(i), 5 + i % 2);
    shorten_if_brief(request.input_ids);
    request.ignore_eos = i % 3 != 0;
  }
  return requests;
}

void expect_output_of_waiting(SpeculativeAlgorithm algorithm, bool graphs, bool terms) {
  EngineOptions options = options_of(algorithm);
  options.disable_cuda_graph = !graphs;
  LoadedModel model(options);
  std::vector<Request> requests = varied_requests(full_or_brief(12, 4));
  if (terms) add_terms(requests);
  // Brief: the two with the most different terms, and a cut of what is drawn from.
  requests.erase(requests.begin(), requests.begin() + full_or_brief(0, 2));
  for (Request& request : requests)
    if (request.top_logprobs) request.top_logprobs = *request.top_logprobs % kMostRankedTokens;
  options.launch_ahead = false;
  EngineLoop waiting(model, nullptr, options);
  const std::vector<Output> expected = serve(waiting, requests);
  // An end that comes where nobody planned it.
  requests.push_back(requests[1]);
  const size_t end = full_or_brief<size_t>(10, 1);
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
  EXPECT_TRUE(
      std::equal(outputs.back().ids.begin(), outputs.back().ids.end(), expected[1].ids.begin()));
  const EngineStats stats = ahead.stats();
  EXPECT_EQ(waiting.stats().launched_ahead, 0);
  EXPECT_GT(stats.launched_ahead, full_or_brief(20, 0));
  EXPECT_EQ(stats.waited_for_draws, 0);
  EXPECT_EQ(stats.chosen_for_logprobs, 0);
  EXPECT_EQ(stats.pages_owned + stats.pages_in_flight, 0);
  EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
}

TEST_P(GpuLaunchAhead, OutputIsThatOfWaiting) {
  expect_output_of_waiting(GetParam(), true, false);
}

TEST_P(GpuLaunchAhead, OutputWithTermsIsThatOfWaiting) {
  expect_output_of_waiting(GetParam(), true, true);
}

TEST_P(GpuLaunchAhead, OutputWithTermsIsThatOfWaitingWithoutGraphs) {
  expect_output_of_waiting(GetParam(), false, true);
}

// With the fastest attention too, where nobody else is in the batch.
TEST(GpuLaunchAhead, ARequestAloneIsTheSameWithoutDeterminism) {
  EngineOptions options = options_of(SpeculativeAlgorithm::kNone);
  options.deterministic = false;
  LoadedModel model(options);
  const std::vector<Request> requests = varied_requests(full_or_brief(6, 2));
  options.launch_ahead = false;
  EngineLoop waiting(model, nullptr, options);
  std::vector<std::vector<int32_t>> expected;
  for (const Request& request : requests) expected.push_back(serve(waiting, {request})[0].ids);
  options.launch_ahead = true;
  EngineLoop ahead(model, nullptr, options);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(serve(ahead, {requests[i]})[0].ids, expected[i]) << "request " << i;
}

void expect_one_wait(SpeculativeAlgorithm algorithm, bool logprobs) {
  EngineOptions options = options_of(algorithm);
  LoadedModel model(options);
  std::vector<Request> requests = varied_requests(2);
  for (Request& request : requests) {
    request.max_tokens = full_or_brief(200, 4);
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
  EXPECT_GE(after.launched_ahead - before.launched_ahead, full_or_brief(steps * 9 / 10, steps - 3));
  EXPECT_LE(after.device_waits - before.device_waits, steps + 24);
  EXPECT_LE(after.device_replays - before.device_replays, steps + 24);
  const int64_t per_row = 8 + (logprobs ? static_cast<int64_t>(sizeof(RowLogprobs)) : 0);
  // The first proposals come from logits on the host; eight rows of those would be 256 KiB a
  // step.
  EXPECT_LE(after.device_download_bytes - before.device_download_bytes,
            8 * steps * per_row + (1 << 20));
}

// Penalties, biases and log probabilities cost no wait, and a token's 164 bytes where those are
// asked for.
TEST_P(GpuLaunchAhead, AStepWithTermsIsOneGraphAndAtMostOneWait) {
  expect_one_wait(GetParam(), false);
}

TEST_P(GpuLaunchAhead, AStepWithLogprobsIsOneGraphAndAtMostOneWait) {
  expect_one_wait(GetParam(), true);
}

// T18. One graph and at most one wait for a step.
TEST_P(GpuLaunchAhead, AStepIsOneGraphAndAtMostOneWait) {
  EngineOptions options = options_of(GetParam());
  options.context_length = 512;
  options.max_total_tokens = 5 * 576;
  LoadedModel model(options);
  const BatchBenchOptions bench{
      .batch_size = 2, .context_len = full_or_brief(100, 4), .output_len = full_or_brief(300, 4)};
  bench_engine(model, bench);  // records
  const EngineBenchResult run = bench_engine(model, bench);
  EXPECT_GT(run.steps, full_or_brief(50, 0));
  EXPECT_GE(run.launched_ahead, run.steps - full_or_brief(6, 3));
  EXPECT_LE(run.device.waits, run.steps + 12);
  EXPECT_LE(run.device.replays, run.steps + 24);
  EXPECT_GE(run.device.stretches, run.steps - 1);
  EXPECT_GT(run.device.busy_ns, 0);
  EXPECT_LT(run.device.busy_ns + run.device.idle_ns, 1.1e9 * run.wall_s);
}

// Steps without drafts where there is a drafter: nothing of them visits the host but tokens.
TEST_P(GpuLaunchAheadHeads, StepsWithoutDraftsAreOneWait) {
  EngineOptions options = options_of(GetParam());
  options.page_size = full_or_brief(64, 16);
  LoadedModel model(options);
  std::vector<Request> requests = varied_requests(full_or_brief(5, 2));
  // Brief: not more rows than may wait, but more than the page has room for.
  requests.back().input_ids.resize(full_or_brief(requests.back().input_ids.size(), 12), 7);
  for (Request& request : requests) {
    request.max_tokens = full_or_brief(200, 6);
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
  EXPECT_GE(after.launched_ahead, full_or_brief(190, 3));
  EXPECT_LE(after.device_waits - before.device_waits, after.steps - before.steps + 4);
  // Four bytes of a token, and as many in place of a draft.
  EXPECT_LE(after.device_download_bytes - before.device_download_bytes, 8 * after.output_tokens);
}

// What the drafter proposes after a pause does not depend on how its rows waited: at page size 1
// every row is run at once.
TEST_P(GpuLaunchAheadHeads, DraftsAfterAPauseAreThoseOfRowsThatDidNotWait) {
  const bool full = full_or_brief(true, false);
  // Brief: a pause of more rows than a page has room for, not of more than may wait.
  const std::vector<int32_t> wanted = full ? drafts_wanted() : std::vector{2, 0, 0, 0, 1, 2};
  const size_t requests = full_or_brief(3, 2);
  std::vector<std::vector<StepRecord>> records;
  for (const int page_size : {1, full_or_brief(64, 16)}) {
    EngineOptions options = options_of(GetParam());
    options.slot_count = options.max_running_requests = 5;
    options.page_size = page_size;
    options.context_length = 256;
    options.speculative.steps = 3;
    LoadedModel model(options);
    if (full || page_size == 1)
      records.push_back(PausingBatch(model, page_size, requests).run_waiting(wanted));
    if (full || page_size > 1) {
      PausingBatch ahead(model, page_size, requests);
      records.push_back(ahead.run_ahead(wanted));
      EXPECT_GT(ahead.started(StartOrder::kAhead), 4 * ahead.started(StartOrder::kHostDrafts));
    }
  }
  for (const std::vector<StepRecord>& record : records) EXPECT_EQ(record, records[0]);
}

class GpuLaunchAheadLayers : public testing::TestWithParam<std::tuple<bool, int>> {};
INSTANTIATE_TEST_SUITE_P(Batches, GpuLaunchAheadLayers,
                         testing::Combine(testing::Bool(), testing::Values(2, 3, 8, 32, 33, 64)),
                         [](const auto& test) {
                           return fmt::format("{}_{}",
                                              std::get<0>(test.param) ? "low_rank" : "plain",
                                              std::get<1>(test.param));
                         });

// T18. Launches of a layer, in the form of DeepSeek-V2-Lite, where the query is one product, and of
// Kimi-K2, where it is two. Experts are large enough to be dealt out (those of models/tales have
// 112 numbers).
TEST_P(GpuLaunchAheadLayers, LaunchesOfALayer) {
  const auto [low_rank, batch] = GetParam();
  const bool brief = full_or_brief(false, true);
  std::ifstream file(model_path("tales") + "/config.json");
  Json config = Json::parse(file);
  config["moe_intermediate_size"] = 128;
  config["hidden_size"] = 2048;
  if (brief) {  // layers of both kinds, of as few outputs as there can be
    config["num_hidden_layers"] = 2;
    config["num_attention_heads"] = config["num_key_value_heads"] = 1;
    config["vocab_size"] = 128;
  }
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
  const BatchBenchOptions bench{.batch_size = batch,
                                .context_len = full_or_brief(100, 1),
                                .output_len = full_or_brief(100, 3)};
  if (!brief) bench_engine(model, bench);  // records; brief: the second of two steps does
  const EngineBenchResult run = bench_engine(model, bench);
  ASSERT_GT(run.device.layers, 0);
  RecordProperty("launches", fmt::format("{:.2f}", static_cast<double>(run.device.layer_launches) /
                                                       static_cast<double>(run.device.layers)));
  const int64_t most =
      batch <= 32 ? kMostLaunchesPerLayer : kMostLaunchesOfManyRows + (low_rank ? 2 : 0);
  // The values of a single head are split by a launch of their own.
  const int64_t of_brief_form = batch <= 32 ? 0 : full_or_brief(0, 1);
  EXPECT_LE(run.device.layer_launches, most * run.device.layers + of_brief_form);
}

}  // namespace
}  // namespace foresail
