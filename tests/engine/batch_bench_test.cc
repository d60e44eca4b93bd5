// The benches of whole batches give the tokens of plain decoding in every order of launches.
#include "engine/batch_bench.h"

#include <gtest/gtest.h>

#include "engine/device_like_kernels.h"
#include "engine/engine_bench.h"
#include "engine/engine_harness.h"

namespace foresail {
namespace {

constexpr BatchBenchOptions kBench = {
    .batch_size = 3, .context_len = 40, .output_len = 33, .draft_len = 3};

EngineOptions options_of(SpeculativeAlgorithm algorithm) {
  EngineOptions options = tiny_options("g13_v3_mtp", algorithm, 16);
  options.slot_count = kBench.batch_size;
  options.max_total_tokens = 1024;
  options.speculative.steps = kBench.draft_len;
  return options;
}

BatchBenchOptions bench_of(SpeculativeAlgorithm algorithm) {
  BatchBenchOptions bench = kBench;
  if (algorithm == SpeculativeAlgorithm::kNone) bench.draft_len = 0;
  return bench;
}

TEST(BatchBench, LaunchingAheadChangesNoToken) {
  for (const float temperature : {0.0f, 0.8f}) {
    for (const auto algorithm : {SpeculativeAlgorithm::kNone, SpeculativeAlgorithm::kMtp}) {
      SCOPED_TRACE(static_cast<int>(algorithm));
      LoadedModel model(options_of(algorithm), {}, std::make_unique<DeviceLikeKernels>());
      BatchBenchOptions options = bench_of(algorithm);
      options.temperature = temperature;
      BatchBench bench(model, options);
      bench.set_launch_ahead(false);
      const BatchBenchResult waiting = bench.run();
      bench.set_launch_ahead(true);
      const BatchBenchResult ahead = bench.run();
      EXPECT_EQ(waiting.ids.size(), 3u * 33);
      EXPECT_EQ(ahead.ids, waiting.ids);
      EXPECT_EQ(waiting.decode_tokens, 3 * 32);
      EXPECT_EQ(ahead.decode_tokens, 3 * 32);
      EXPECT_EQ(waiting.launched_ahead, 0);
      EXPECT_GT(ahead.launched_ahead, 10);
      for (const double seconds : ahead.tpot_s) EXPECT_GT(seconds, 0.0);
    }
  }
}

TEST(BatchBench, LaunchingAheadChangesNoPretendedAcceptance) {
  EngineOptions options = options_of(SpeculativeAlgorithm::kMtp);
  options.speculative.simulate_accept_length = 2.5;
  LoadedModel model(options, {}, std::make_unique<DeviceLikeKernels>());
  BatchBench bench(model, kBench);
  bench.set_launch_ahead(false);
  const BatchBenchResult waiting = bench.run();
  bench.set_launch_ahead(true);
  const BatchBenchResult ahead = bench.run();
  EXPECT_NEAR(waiting.accept_length(), 2.5, 0.4);
  EXPECT_NEAR(ahead.accept_length(), 2.5, 0.4);
  EXPECT_EQ(ahead.ids, waiting.ids);
}

// Passes without a draft say nothing of drafts: four tokens after the first are one pass of three
// drafts, one of none.
TEST(BatchBench, AcceptLengthIsOfThePassesThatHadDrafts) {
  EngineOptions options = options_of(SpeculativeAlgorithm::kMtp);
  options.speculative.simulate_accept_length = 4.0;
  LoadedModel model(options, {}, std::make_unique<DeviceLikeKernels>());
  BatchBenchOptions four = kBench;
  four.output_len = 6;
  BatchBench bench(model, four);
  const BatchBenchResult run = bench.run();
  EXPECT_EQ(run.draft_passes, kBench.batch_size);
  EXPECT_EQ(run.accepted, 3 * kBench.batch_size);
  EXPECT_DOUBLE_EQ(run.accept_length(), 4.0);
}

TEST(EngineBench, CountsTheStepsThatOnlyDecode) {
  for (const auto algorithm : {SpeculativeAlgorithm::kNone, SpeculativeAlgorithm::kMtp}) {
    LoadedModel model(options_of(algorithm), {}, std::make_unique<DeviceLikeKernels>());
    BatchBenchOptions bench = bench_of(algorithm);
    const EngineBenchResult ahead = bench_engine(model, bench);
    bench.launch_ahead = false;
    const EngineBenchResult waiting = bench_engine(model, bench);
    EXPECT_GT(waiting.steps, 5);
    EXPECT_EQ(waiting.launched_ahead, 0);
    EXPECT_GT(ahead.launched_ahead, ahead.steps - 6);
    EXPECT_GT(ahead.host_s, 0.0);
  }
}

}  // namespace
}  // namespace foresail
