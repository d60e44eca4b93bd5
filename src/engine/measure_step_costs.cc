#include "engine/measure_step_costs.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/checked_math.h"
#include "base/random.h"
#include "engine/fill_caches.h"

namespace foresail {
namespace {

constexpr int kLeastRounds = 3;
constexpr int kMostRounds = 15;
constexpr double kBatchBudget_s = 0.3;  // of one batch size, once it has its least rounds
constexpr int32_t kBatchStep = 4;
// Keys of every made-up request: about those of a short conversation.
constexpr int64_t kContextLen = 256;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Such that the next token does not complete a page, which would make drafters catch up; one token
// at least has KV.
int64_t made_up_context_len(int64_t most, int page_size) {
  const int64_t len = std::clamp<int64_t>(most / 2, 1, kContextLen);
  return std::max<int64_t>(2, len - len % page_size + 1);
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class MadeUpBatch {
 public:
  MadeUpBatch(LoadedModel& model, int32_t batch_size, int32_t max_depth)
      : model_(model),
        page_size_(model.planner().config().page_size),
        context_len_(made_up_context_len(model.context_length(), page_size_)),
        requests_(batch_size) {
    // As far as there are pages, every request has its own: keys that all share are read from the
    // nearest cache, and then little seems to depend on the number of requests.
    const int64_t pages_each = ceil_div<int64_t>(context_len_ + max_depth + 1, page_size_);
    const int64_t page_count = std::min(batch_size * pages_each, model.page_count() - 1);
    fill_caches(model.store(), model.kernels().memory(), 1, page_count, 0);
    for (int32_t slot = 0; slot < batch_size; ++slot) {
      std::vector<int32_t>& table = page_tables_.emplace_back(model.pages_per_slot());
      for (int64_t page = 0; page < pages_each; ++page)
        table[page] = static_cast<int32_t>(1 + (slot * pages_each + page) % page_count);
      RequestState& request = requests_[slot];
      request.slot = slot;
      request.page_table = table.data();
      request.sampling.temperature = 0.0f;
      for (int64_t i = 0; i < context_len_; ++i) request.tokens.push_back(token(slot, i));
      running_.push_back(&request);
    }
    find_continuations(max_depth);
  }

  // Medians of turns: what else the machine does hits all depths alike.
  MeasuredBatch measure(int32_t max_depth) {
    std::vector<std::vector<double>> refused(max_depth + 1), accepted(max_depth + 1);
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < kMostRounds; ++round) {
      if (round >= kLeastRounds && seconds_since(start) > kBatchBudget_s) break;
      for (int32_t depth = 0; depth <= max_depth; ++depth) {
        refused[depth].push_back(time(depth, false));
        if (depth > 0) accepted[depth].push_back(time(depth, true));
      }
    }
    MeasuredBatch result{static_cast<int32_t>(requests_.size()), {}, {0.0}, catch_up_seconds()};
    for (int32_t depth = 0; depth <= max_depth; ++depth) {
      result.seconds.push_back(median(refused[depth]));
      if (depth > 0)
        result.accepted_seconds.push_back(
            std::max(0.0, median(accepted[depth]) - result.seconds[depth]));
    }
    return result;
  }

 private:
  // What the model says after the made-up tokens: drafts that it accepts.
  void find_continuations(int32_t max_depth) {
    for (int32_t i = 0; i < max_depth; ++i) {
      for (RequestState& request : requests_) request.draft_steps = 0;
      model_.iteration().decode(running_);
    }
    for (RequestState& request : requests_)
      continuations_.emplace_back(request.tokens.begin() + context_len_, request.tokens.end());
  }

  // One iteration that verifies `depth` drafts per request, all accepted or (nearly) all refused,
  // and proposes as many.
  double time(int32_t depth, bool accepted) {
    for (RequestState& request : requests_) {
      request.tokens.resize(context_len_);
      request.drafts.clear();
      for (int32_t i = 0; i < depth; ++i)
        request.drafts.push_back(accepted ? continuations_[request.slot][i]
                                          : token(request.slot, context_len_ + i));
      request.draft_steps = depth;
    }
    const auto start = std::chrono::steady_clock::now();
    model_.iteration().decode(running_);
    return seconds_since(start);
  }

  // Where nothing is drafted, the drafter's rows wait until a page is complete. What that page then
  // takes, per iteration.
  double catch_up_seconds() {
    const int64_t row_count = std::min<int64_t>(page_size_, context_len_ - 1);
    if (page_size_ == 1 || row_count == 0) return 0.0;  // none ever wait
    std::vector<double> times;
    for (int round = 0; round < kLeastRounds; ++round) times.push_back(extend(row_count));
    return median(times) * static_cast<double>(requests_.size()) / static_cast<double>(row_count);
  }

  // The drafter takes in that many rows of the first request.
  double extend(int64_t row_count) {
    Drafter& drafter = *model_.drafter();
    const auto width =
        static_cast<int64_t>(drafter.target_layers().size()) * model_.config().hidden_dim;
    std::vector<float> states(row_count * width);
    for (size_t i = 0; i < states.size(); ++i)
      states[i] = static_cast<float>(random_uniform(0, i, RandomPurpose::kShuffle)) - 0.5f;
    const int64_t first_position = context_len_ - 1 - row_count;
    const RequestState& request = requests_[0];
    const auto tokens = std::span(request.tokens).first(context_len_);
    const ExtendRows rows = {.request = {.slot = request.slot,
                                         .page_table = request.page_table,
                                         .tokens = tokens,
                                         .sampling = &request.sampling},
                             .first_position = static_cast<int32_t>(first_position),
                             .next_tokens = tokens.subspan(first_position + 1)};
    const auto start = std::chrono::steady_clock::now();
    drafter.extend({&rows, 1}, {states.data(), DType::kF32, row_count, width, width});
    return seconds_since(start);
  }

  int32_t token(int32_t slot, int64_t index) const {
    return static_cast<int32_t>(random_bits(slot, index, RandomPurpose::kShuffle) %
                                model_.config().vocab_size);
  }

  LoadedModel& model_;
  int page_size_;  // tokens
  int64_t context_len_;
  std::vector<std::vector<int32_t>> page_tables_;
  std::vector<std::vector<int32_t>> continuations_;
  std::vector<RequestState> requests_;
  std::vector<RequestState*> running_;
};

}  // namespace

StepCosts measure_step_costs(LoadedModel& model, int32_t max_batch, int32_t max_depth,
                             double budget_s) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<double> simulated = model.iteration().simulate_accept_length({});
  std::vector<MeasuredBatch> batches;
  for (int32_t batch_size = 1;; batch_size = std::min(batch_size * kBatchStep, max_batch)) {
    MadeUpBatch batch(model, batch_size, max_depth);
    batches.push_back(batch.measure(max_depth));
    if (batch_size == max_batch || seconds_since(start) > budget_s) break;
  }
  model.iteration().simulate_accept_length(simulated);
  return StepCosts(std::move(batches));
}

}  // namespace foresail
