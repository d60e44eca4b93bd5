// Steps after which nobody wants drafts: a device leaves the drafter's rows waiting beside its
// kernels and goes on launching ahead; when drafts are wanted again, they are those of the host.
#include <gtest/gtest.h>

#include "engine/device_like_kernels.h"
#include "engine/draftings.h"
#include "engine/memory_plan.h"
#include "engine/pausing_batch.h"

namespace foresail {
namespace {

class WaitingRows : public testing::TestWithParam<DraftingCase> {};

TEST_P(WaitingRows, DraftsAfterAPauseAreTheHosts) {
  const auto [index, page_size, backend] = GetParam();
  EngineOptions options = tiny_options(kDraftings[index], page_size);
  options.attention_backend = backend;
  options.speculative.steps = 3;
  const std::vector<int32_t> wanted = drafts_wanted();
  LoadedModel host(options);
  const std::vector<StepRecord> expected = PausingBatch(host, page_size).run_waiting(wanted);
  EXPECT_EQ(expected.size(), 3 * wanted.size());
  LoadedModel device(options, {}, std::make_unique<DeviceLikeKernels>());
  EXPECT_EQ(PausingBatch(device, page_size).run_waiting(wanted), expected);
  PausingBatch ahead(device, page_size);
  EXPECT_EQ(ahead.run_ahead(wanted), expected);
  // Only the first step of drafts after a pause whose last tokens are not known yet is waited for.
  EXPECT_GT(ahead.started(StartOrder::kHostDrafts), 0);
  EXPECT_LE(ahead.started(StartOrder::kHostDrafts), 4);
  EXPECT_EQ(ahead.started(StartOrder::kAhead) + ahead.started(StartOrder::kHostDrafts),
            static_cast<int>(wanted.size()));
}

INSTANTIATE_TEST_SUITE_P(All, WaitingRows, drafting_cases(kHeadDraftings, {1, 4, 16, 64}),
                         drafting_case_name);

// The rows that wait, and again dense when they are taken in.
TEST(WaitingRowsMemory, TheyTakeWhatIsPlanned) {
  for (int index = 0; index < kHeadDraftings; ++index) {
    SCOPED_TRACE(kDraftings[index].name);
    EngineOptions options = tiny_options(kDraftings[index], 16);
    options.speculative.steps = 3;
    auto made = std::make_unique<DeviceLikeKernels>();
    const DeviceLikeKernels& kernels = *made;
    LoadedModel model(options, {}, std::move(made));
    options.device = "cuda";
    const size_t planned = plan_memory(model.config(), options, true).kept_row_bytes;
    EXPECT_GT(planned, 0u);
    EXPECT_EQ(kernels.allocations_of(planned / 2), 0);
    PausingBatch(model, 16).run_waiting(drafts_wanted());
    EXPECT_EQ(kernels.allocations_of(planned / 2), 2);
  }
}

// The engine's steps without drafts: launched ahead, states stay where they are.
TEST(WaitingRowsEngine, StepsWithoutDraftsAreLaunchedAhead) {
  for (int index = 0; index < kHeadDraftings; ++index) {
    SCOPED_TRACE(kDraftings[index].name);
    EngineOptions options = tiny_options(kDraftings[index], 16);
    options.speculative.steps = 3;
    LoadedModel model(options, {}, std::make_unique<DeviceLikeKernels>());
    std::vector<Request> requests = random_requests(8, 4);
    for (Request& request : requests) {
      request.sampling = {.temperature = request.sampling.temperature};
      request.min_tokens = 0;
      request.max_tokens = 50;
      request.ignore_eos = true;
      request.speculative_steps = 0;
    }
    options.launch_ahead = false;
    EngineLoop waiting(model, nullptr, options);
    const std::vector<Output> expected = serve(waiting, requests);
    options.launch_ahead = true;
    EngineLoop ahead(model, nullptr, options);
    const std::vector<Output> outputs = serve(ahead, requests);
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(outputs[i].ids, expected[i].ids);
    EXPECT_EQ(ahead.stats().drafted, 0);
    EXPECT_EQ(ahead.stats().waited_for_drafts, 0);
    EXPECT_GT(ahead.stats().launched_ahead, 40);
  }
}

}  // namespace
}  // namespace foresail
