// Steps after which nobody wants drafts: a device leaves the drafter's rows waiting beside its
// kernels and goes on launching ahead; when drafts are wanted again, they are those of the host.
#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "engine/device_like_kernels.h"
#include "engine/draftings.h"

namespace foresail {
namespace {

// Drafts wanted after each step: on and off, pauses of less and more than a page, off right after
// on and the other way round.
std::vector<int32_t> drafts_wanted() {
  std::vector<int32_t> steps = {3, 3};
  const auto pause = [&](int count) { steps.insert(steps.end(), count, 0); };
  pause(1);
  steps.push_back(2);
  pause(20);
  steps.insert(steps.end(), {3, 0, 1, 0, 0, 3, 3});
  pause(37);
  steps.insert(steps.end(), {1, 2, 3});
  pause(2);
  steps.push_back(3);
  return steps;
}

struct StepRecord {
  std::vector<int32_t> tokens, drafts;
  bool operator==(const StepRecord&) const = default;
};

// A few requests through the iterations of one model.
class PausingBatch {
 public:
  PausingBatch(LoadedModel& model, int page_size) : model_(model), requests_(3) {
    const std::vector<Request> made = random_requests(91, 3);
    int32_t next_page = 1;
    for (size_t i = 0; i < requests_.size(); ++i) {
      RequestState& request = requests_[i];
      pages_.emplace_back(160 / page_size + 1);
      std::iota(pages_.back().begin(), pages_.back().end(), next_page);
      next_page += static_cast<int32_t>(pages_.back().size());
      request.slot = static_cast<int32_t>(i);
      request.tokens.assign(
          made[i].input_ids.begin(),
          made[i].input_ids.begin() + std::min<int64_t>(made[i].input_ids.size(), 5 + 9 * i));
      request.prompt_len = static_cast<int64_t>(request.tokens.size());
      request.sampling = {.temperature = i == 1 ? 0.8f : 0.0f, .seed = i};
      running_.push_back(&request);
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      requests_[i].page_table = pages_[i].data();
      const PrefillRows rows{&requests_[i], 0, static_cast<int32_t>(requests_[i].tokens.size())};
      requests_[i].draft_steps = 3;
      model.iteration().prefill({&rows, 1});
    }
    model.iteration().draft(running_);
  }

  // Each step once the one before is known.
  std::vector<StepRecord> run_waiting(const std::vector<int32_t>& wanted) {
    for (const int32_t steps : wanted) {
      for (RequestState& request : requests_) request.draft_steps = steps;
      record(model_.iteration().decode(running_));
    }
    return records_;
  }

  // Launched ahead where that can be.
  std::vector<StepRecord> run_ahead(const std::vector<int32_t>& wanted) {
    Iteration& iteration = model_.iteration();
    std::deque<Flight> under_way;
    const auto settle = [&](size_t left) {
      while (under_way.size() > left) {
        record(iteration.finish(under_way.front()));
        under_way.pop_front();
      }
    };
    for (const int32_t steps : wanted) {
      std::vector<DecodeRequest> next;
      for (RequestState& request : requests_) next.push_back({&request, 3, steps});
      const Flight* before = under_way.empty() ? nullptr : &under_way.back();
      const StartOrder order = iteration.choose_order(next, before);
      ++orders_[static_cast<size_t>(order)];
      if (order == StartOrder::kAhead) {
        under_way.push_back(iteration.start_ahead(next, before));
        settle(1);
      } else {
        settle(0);
        under_way.push_back(iteration.start(next));
        EXPECT_TRUE(under_way.back().queued);
        settle(0);
      }
    }
    settle(0);
    return records_;
  }
  int started(StartOrder order) const { return orders_[static_cast<size_t>(order)]; }

 private:
  void record(const std::vector<IterationResult>& results) {
    for (const IterationResult& result : results)
      records_.push_back({result.new_tokens, result.drafts});
  }

  LoadedModel& model_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<RequestState> requests_;
  std::vector<RequestState*> running_;
  std::vector<StepRecord> records_;
  std::array<int, static_cast<size_t>(StartOrder::kCount)> orders_ = {};
};

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
