#include "engine/record_steps.h"

#include <algorithm>
#include <deque>

#include "base/random.h"

namespace foresail {
namespace {

// A device lays out passes for lengths up to a power of two, this at least (cuda/pass_words.h).
constexpr int64_t kLeastBucket = 512;
// Once to grow scratch, once to be recorded, once to be joined.
constexpr int kRuns = 3;

int32_t passes_of(int32_t draft_len, bool drafts) {
  return drafts ? 1 + std::max(1, draft_len) : 1;  // verify, and extend with the draft steps
}

// Such that no row of the runs leaves the bucket, nor what a request may have.
int64_t length_in(int64_t bucket, int64_t context_length, int32_t depth) {
  return std::max<int64_t>(2, std::min(bucket / 4 * 3, context_length - kRuns * (depth + 1)));
}

}  // namespace

std::vector<StepShape> common_step_shapes(int32_t max_batch, int32_t max_depth, bool all_depths,
                                          int64_t context_length, int32_t most_passes) {
  std::vector<int32_t> batches;
  for (int32_t batch = 1; batch < max_batch && batch < 32; batch *= 2) batches.push_back(batch);
  batches.push_back(std::min(max_batch, 32));
  std::vector<int64_t> buckets = {kLeastBucket};
  while (buckets.back() < context_length) buckets.push_back(2 * buckets.back());
  const int32_t least_depth = all_depths ? 0 : max_depth;

  std::vector<StepShape> shapes = {
      {batches.back(), max_depth, length_in(buckets.back(), context_length, max_depth)}};
  int32_t passes = passes_of(max_depth, max_depth > 0);
  for (const int64_t bucket : buckets)
    for (const int32_t batch : batches)
      for (int32_t depth = max_depth; depth >= least_depth; --depth) {
        const StepShape shape = {batch, depth, length_in(bucket, context_length, depth)};
        if (shape == shapes.front()) continue;
        passes += passes_of(depth, max_depth > 0);
        if (passes > most_passes) return shapes;
        shapes.push_back(shape);
      }
  return shapes;
}

size_t record_decode_steps(LoadedModel& model, std::span<const StepShape> shapes,
                           const RecordProgress& progress) {
  Iteration& iteration = model.iteration();
  if (!model.kernels().prefers_choosing()) return 0;
  const std::vector<int32_t> sink_pages(model.pages_per_slot());
  const auto token = [&](int32_t slot, int64_t index) {
    return static_cast<int32_t>(random_bits(slot, index, RandomPurpose::kShuffle) %
                                model.config().vocab_size);
  };
  size_t recorded = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const StepShape& shape = shapes[i];
    std::vector<RequestState> requests(shape.batch_size);
    std::vector<DecodeRequest> wanted;
    for (int32_t slot = 0; slot < shape.batch_size; ++slot) {
      RequestState& request = requests[slot];
      request.slot = slot;
      request.page_table = sink_pages.data();
      for (int64_t at = 0; at < shape.length; ++at) request.tokens.push_back(token(slot, at));
      for (int32_t at = 0; at < shape.draft_len; ++at)
        request.drafts.push_back(token(slot, shape.length + at));
      wanted.push_back({&request, shape.draft_len, shape.draft_len});
    }
    std::deque<Flight> under_way;
    for (int run = 0; run < kRuns; ++run) {
      const Flight* before = under_way.empty() ? nullptr : &under_way.back();
      if (iteration.choose_order(wanted, before) != StartOrder::kAhead) break;
      under_way.push_back(iteration.start_ahead(wanted, before));
      if (under_way.size() < 2) continue;
      iteration.finish(under_way.front());
      under_way.pop_front();
    }
    recorded += !under_way.empty();
    for (const Flight& flight : under_way) iteration.finish(flight);
    if (progress) progress(i + 1, shapes.size());
  }
  return recorded;
}

}  // namespace foresail
