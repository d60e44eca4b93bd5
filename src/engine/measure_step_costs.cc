#include "engine/measure_step_costs.h"

#include <algorithm>
#include <chrono>

#include "runtime/random.h"

namespace foresail {
namespace {

constexpr int kLeastRounds = 3;
constexpr int kMostRounds = 15;
constexpr double kBatchBudget_s = 0.15;  // of one batch size, once it has its least rounds
constexpr int32_t kBatchStep = 4;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class MadeUpBatch {
 public:
  MadeUpBatch(LoadedModel& model, int32_t batch_size) : model_(model), requests_(batch_size) {
    sink_pages_.resize(model.pages_per_slot());
    for (int32_t slot = 0; slot < batch_size; ++slot) {
      RequestState& request = requests_[slot];
      request.slot = slot;
      request.page_table = sink_pages_.data();
      request.sampling.temperature = 0.0f;
      request.tokens = {token(slot, 0), token(slot, 1)};
      running_.push_back(&request);
    }
  }

  // One iteration that verifies `depth` drafts per request and proposes as many.
  double time(int32_t depth) {
    for (RequestState& request : requests_) {
      request.tokens.resize(2);
      request.drafts.clear();
      for (int32_t i = 0; i < depth; ++i) request.drafts.push_back(token(request.slot, 2 + i));
      request.draft_steps = depth;
    }
    const auto start = std::chrono::steady_clock::now();
    model_.iteration().decode(running_);
    return seconds_since(start);
  }

  // Medians by depth. The depths take turns, so that what else the machine does hits all alike.
  std::vector<double> medians(int32_t max_depth) {
    std::vector<std::vector<double>> times(max_depth + 1);
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < kMostRounds; ++round) {
      if (round >= kLeastRounds && seconds_since(start) > kBatchBudget_s) break;
      for (int32_t depth = 0; depth <= max_depth; ++depth) times[depth].push_back(time(depth));
    }
    std::vector<double> result;
    for (std::vector<double>& list : times) {
      const auto middle = list.begin() + static_cast<int64_t>(list.size() / 2);
      std::nth_element(list.begin(), middle, list.end());
      result.push_back(*middle);
    }
    return result;
  }

 private:
  int32_t token(int32_t slot, int32_t index) const {
    return static_cast<int32_t>(random_bits(slot, index, RandomPurpose::kShuffle) %
                                model_.config().vocab_size);
  }

  LoadedModel& model_;
  std::vector<int32_t> sink_pages_;  // zeros
  std::vector<RequestState> requests_;
  std::vector<RequestState*> running_;
};

}  // namespace

StepCosts measure_step_costs(LoadedModel& model, int32_t max_batch, int32_t max_depth,
                             double budget_s) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<int32_t> batch_sizes;
  std::vector<std::vector<double>> seconds;
  for (int32_t batch_size = 1;; batch_size = std::min(batch_size * kBatchStep, max_batch)) {
    MadeUpBatch batch(model, batch_size);
    batch.time(max_depth);  // touches everything once
    batch_sizes.push_back(batch_size);
    seconds.push_back(batch.medians(max_depth));
    if (batch_size == max_batch || seconds_since(start) > budget_s) break;
  }
  return {std::move(batch_sizes), std::move(seconds)};
}

}  // namespace foresail
