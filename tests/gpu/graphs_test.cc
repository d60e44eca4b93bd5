// Recorded passes beside passes launched kernel by kernel: the same bits, whatever came before.
#include <gtest/gtest.h>

#include "engine/engine_harness.h"
#include "gpu_fixture.h"

namespace foresail {
namespace {

EngineOptions options_of(bool graphs, int steps) {
  EngineOptions options;
  options.model_path = model_path("tales");
  options.device = "cuda";
  options.deterministic = true;
  options.attention_path = "absorbed";
  options.disable_cuda_graph = !graphs;
  options.disable_radix_cache = true;
  options.slot_count = options.max_running_requests = 6;
  options.speculative = {
      .algorithm = SpeculativeAlgorithm::kMtp, .steps = steps, .adaptive = false};
  return options;
}

std::vector<Request> requests_of(int count) {
  std::vector<Request> requests = random_requests(91, count, 8192);
  for (Request& request : requests) {
    request.max_tokens = full_or_brief(24, 4);
    request.ignore_eos = true;
  }
  return requests;
}

void expect_same(const std::vector<Output>& got, const std::vector<Output>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].ids, want[i].ids) << i;
}

// T19
TEST(GpuGraphs, RecordedEqualsEager) {
  std::vector<Request> requests = requests_of(full_or_brief(12, 3));
  for (const size_t i : {0, 2}) shorten_if_brief(requests[i].input_ids);
  // More rows than products of few take.
  requests[1].input_ids.resize(full_or_brief<size_t>(requests[1].input_ids.size(), 36));
  const int steps = full_or_brief(3, 2);
  const int times = full_or_brief(1, 3);  // so that passes are met again
  std::vector<std::vector<Output>> outputs;
  for (const bool graphs : {false, true}) {
    LoadedModel model(options_of(graphs, steps));
    EngineLoop loop(model, nullptr, options_of(graphs, steps));
    for (int i = 0; i < times; ++i) outputs.push_back(serve(loop, requests));
    EXPECT_EQ(loop.stats().device_replays > 0, graphs);
  }
  for (const std::vector<Output>& again : outputs) expect_same(again, outputs[0]);
}

// T4, T5: large, small and large batches, prompts and decode rows in every order, in one model.
TEST(GpuGraphs, NothingIsLeftFromThePassBefore) {
  std::vector<Request> requests = requests_of(full_or_brief(6, 2));
  for (Request& request : requests) shorten_if_brief(request.input_ids);
  EngineOptions options = options_of(true, full_or_brief(3, 1));
  LoadedModel model(options);
  std::vector<Output> alone;
  {
    EngineLoop loop(model, nullptr, options);
    for (const Request& request : requests) alone.push_back(serve(loop, {request})[0]);
  }
  for (const int64_t chunk : full_or_brief<std::vector<int64_t>>({2048, 16, 3, 2048}, {3})) {
    options.chunked_prefill_size = chunk;
    EngineLoop loop(model, nullptr, options);
    for (const size_t count : full_or_brief<std::vector<size_t>>({6, 1, 6, 3, 6}, {2, 1, 2})) {
      SCOPED_TRACE(count);
      const std::vector<Request> some(requests.begin(), requests.begin() + count);
      expect_same(serve(loop, some), {alone.begin(), alone.begin() + count});
    }
  }
}

}  // namespace
}  // namespace foresail
