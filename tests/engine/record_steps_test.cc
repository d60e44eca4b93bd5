// Which decode steps are recorded before the first request, and that nothing is left of them.
#include "engine/record_steps.h"

#include <gtest/gtest.h>

#include "engine/device_like_kernels.h"
#include "engine/engine_harness.h"

namespace foresail {
namespace {

TEST(CommonStepShapes, TheLargestFirstThenTheLikeliest) {
  const auto shapes = common_step_shapes(4, 0, false, 1000, 100);
  EXPECT_EQ(shapes,
            (std::vector<StepShape>{
                {4, 0, 768}, {1, 0, 384}, {2, 0, 384}, {4, 0, 384}, {1, 0, 768}, {2, 0, 768}}));
}

TEST(CommonStepShapes, DepthsCostPassesAndThereIsALimit) {
  const auto shapes = common_step_shapes(16, 3, true, 8192, 160);
  EXPECT_EQ(shapes.front(), (StepShape{16, 3, 6144}));
  EXPECT_EQ(shapes[1], (StepShape{1, 3, 384}));
  EXPECT_EQ(shapes[3], (StepShape{1, 1, 384}));
  EXPECT_EQ(shapes[4], (StepShape{1, 0, 384}));
  int passes = 0;
  for (const StepShape& shape : shapes) {
    passes += 1 + std::max(1, shape.draft_len);  // without drafts, the one that keeps states
  }
  EXPECT_LE(passes, 160);
  EXPECT_GT(passes, 150);
  // Fixed depth: all of it fits.
  EXPECT_EQ(common_step_shapes(16, 3, false, 8192, 160).size(), 25u);
  EXPECT_EQ(common_step_shapes(100, 0, false, 200, 160).front(), (StepShape{32, 0, 197}));
}

TEST(RecordSteps, LeavesNothingBehind) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp, 16);
  options.speculative.steps = 3;
  std::vector<Request> requests = random_requests(61, 5);
  for (Request& request : requests) request.min_tokens = 0;
  std::vector<std::vector<Output>> outputs;
  for (const bool recorded : {false, true}) {
    LoadedModel model(options, {}, std::make_unique<DeviceLikeKernels>());
    if (recorded) {
      const auto shapes = common_step_shapes(5, 3, true, model.context_length(), 100);
      size_t calls = 0;
      EXPECT_EQ(record_decode_steps(model, shapes, [&](size_t, size_t) { ++calls; }),
                shapes.size());
      EXPECT_EQ(calls, shapes.size());
    }
    EngineLoop loop(model, nullptr, options);
    outputs.push_back(serve(loop, requests));
  }
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(outputs[1][i].ids, outputs[0][i].ids);
  // The CPU records nothing.
  LoadedModel host(options);
  const auto shapes = common_step_shapes(5, 3, true, host.context_length(), 100);
  EXPECT_EQ(record_decode_steps(host, shapes), 0u);
}

}  // namespace
}  // namespace foresail
