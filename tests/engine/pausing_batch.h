// A batch whose drafts pause and go on, step by step through Iteration, without an engine.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <numeric>
#include <vector>

#include "engine/engine_harness.h"

namespace foresail {

// Drafts wanted after each step: on and off, pauses of less and more than a page, off right after
// on and the other way round.
inline std::vector<int32_t> drafts_wanted() {
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
  PausingBatch(LoadedModel& model, int page_size, size_t request_count = 3)
      : model_(model), requests_(request_count) {
    const std::vector<Request> made = random_requests(91, static_cast<int>(request_count));
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

}  // namespace foresail
