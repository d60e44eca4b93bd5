#include "engine/batch_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <numeric>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/random.h"
#include "engine/fill_caches.h"
#include "engine/measure_step_costs.h"

namespace foresail {
namespace {

// Tokens of a synthetic context that are run: enough for a pass over a cached prefix.
constexpr int64_t kSyntheticSuffix = 256;
constexpr int64_t kChunkRows = 2048;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

MetadataCounts difference(const MetadataCounts& a, const MetadataCounts& b) {
  return {.plans = a.plans - b.plans,
          .key_index_builds = a.key_index_builds - b.key_index_builds,
          .chunk_lists = a.chunk_lists - b.chunk_lists,
          .ragged_plans = a.ragged_plans - b.ragged_plans};
}

}  // namespace

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double BatchBenchResult::decode_s() const {
  return std::accumulate(iteration_s.begin(), iteration_s.end(), 0.0);
}

double BatchBenchResult::accept_length() const {
  return foresail::accept_length(accepted, draft_passes);
}

BatchBench::BatchBench(LoadedModel& model, const BatchBenchOptions& options)
    : model_(model), options_(options) {
  pages_per_request_ = model.pages_per_slot();
  if (1 + pages_per_request_ * options.batch_size > model.page_count())
    throw_error(ErrorCode::kUsage,
                "{} requests of {} tokens need {} pages and the cache has {}: lower the batch size",
                options.batch_size, options.context_len + options.output_len,
                pages_per_request_ * options.batch_size, model.page_count() - 1);
  for (int32_t request = 0; request < options.batch_size; ++request) {
    std::vector<int32_t>& table = page_tables_.emplace_back(pages_per_request_);
    std::iota(table.begin(), table.end(), 1 + static_cast<int32_t>(request * pages_per_request_));
  }
  if (options.synthetic_context)
    fill_caches(model.store(), model.kernels().memory(), 0, model.page_count(), options.seed);
  set_depth(options.draft_len, options.adaptive);
}

void BatchBench::set_depth(int32_t draft_len, bool adaptive) {
  options_.draft_len = draft_len;
  options_.adaptive = adaptive;
  if (adaptive && !adaptive_depth_)
    adaptive_depth_.emplace(measure_step_costs(model_, options_.batch_size, draft_len));
}

std::vector<RequestState> BatchBench::make_requests() const {
  std::vector<RequestState> requests(options_.batch_size);
  for (int32_t index = 0; index < options_.batch_size; ++index) {
    RequestState& request = requests[index];
    request.slot = index;
    request.page_table = page_tables_[index].data();
    request.sampling.temperature = options_.temperature;
    request.sampling.seed = options_.seed + index;
    request.draft_steps = options_.draft_len;
    for (int64_t i = 0; i < options_.context_len; ++i)
      request.tokens.push_back(
          static_cast<int32_t>(random_bits(options_.seed + index, i, RandomPurpose::kShuffle) %
                               model_.config().vocab_size));
  }
  return requests;
}

// Requests that the iterations so far may leave unfinished, and how many drafts of each are to be
// verified: no further than asked, since what lies past the end has no page.
std::vector<DecodeRequest> BatchBench::next_iteration(const std::vector<RequestState*>& running,
                                                      const Flight* before) {
  const int32_t depth = options_.adaptive
                            ? adaptive_depth_->choose(static_cast<int32_t>(running.size()))
                            : options_.draft_len;
  std::vector<DecodeRequest> requests;
  for (RequestState* request : running) {
    int64_t least = output_len(*request), most = least;
    if (before != nullptr) {
      for (const Flight::Item& item : before->items) {
        if (item.request != request) continue;
        // Where acceptance is pretended, its length is known.
        const bool known = item.pretended >= 0;
        least += known ? std::min(item.pretended + 1, item.row_count) : 1;
        most = known ? least : most + item.row_count;
      }
    }
    if (least >= options_.output_len) continue;
    const int64_t left = std::max<int64_t>(0, options_.output_len - most - 1);
    requests.push_back({request, static_cast<int32_t>(std::min<int64_t>(left, INT32_MAX)), depth});
  }
  return requests;
}

void BatchBench::decode(std::vector<RequestState*> running, BatchBenchResult& result) {
  Iteration& iteration = model_.iteration();
  const DeviceCounts device_before = model_.kernels().counts();
  if (times_work_) model_.kernels().time_work(true);
  result.tpot_s.resize(running.size());
  const auto start = std::chrono::steady_clock::now();
  for (const DecodeRequest& first : next_iteration(running, nullptr))
    first.request->draft_steps = first.draft_steps;
  iteration.draft(running);
  const bool may_launch = options_.launch_ahead && model_.kernels().prefers_choosing();
  std::deque<Flight> started;
  double at_s = 0.0;
  while (!running.empty()) {
    const std::vector<DecodeRequest> next =
        next_iteration(running, started.empty() ? nullptr : &started.back());
    const bool ahead = may_launch && !next.empty() &&
                       iteration.choose_order(next, started.empty() ? nullptr : &started.back()) ==
                           StartOrder::kAhead;
    if (ahead) {
      started.push_back(iteration.start_ahead(next, started.empty() ? nullptr : &started.back()));
      ++result.launched_ahead;
      if (started.size() == 1) continue;
    } else if (started.empty()) {
      started.push_back(iteration.start(next));
    }
    const Flight flight = std::move(started.front());
    started.pop_front();
    const int32_t drafted = flight.items[0].row_count - 1;
    const bool steady =
        std::all_of(flight.items.begin(), flight.items.end(), [&](const Flight::Item& item) {
          return item.row_count == drafted + 1 && item.draft_steps == drafted;
        });
    const std::vector<IterationResult> rows = iteration.finish(flight);
    const double now_s = seconds_since(start);
    bool any_wanted = false;
    for (size_t i = 0; i < rows.size(); ++i) {
      // What was launched for a request that had ended meanwhile does not count.
      RequestState* request = flight.items[i].request;
      const auto found = std::find(running.begin(), running.end(), request);
      if (found == running.end()) continue;
      any_wanted = true;
      if (options_.adaptive) adaptive_depth_->observe(rows[i].drafted, rows[i].accepted);
      if (rows[i].drafted > 0) ++result.draft_passes;
      result.accepted += rows[i].accepted;
      if (output_len(*request) < options_.output_len) continue;
      result.tpot_s[request->slot] =
          now_s / static_cast<double>(std::max<int64_t>(1, output_len(*request) - 1));
      running.erase(found);
    }
    if (!any_wanted) continue;
    result.iteration_s.push_back(now_s - at_s);
    at_s = now_s;
    if (options_.adaptive && steady)
      adaptive_depth_->observe_seconds(static_cast<int32_t>(rows.size()), drafted,
                                       result.iteration_s.back());
  }
  for (const Flight& flight : started) iteration.finish(flight);
  result.decode_device = model_.kernels().counts() - device_before;
  if (times_work_) model_.kernels().time_work(false);
}

BatchBenchResult BatchBench::run() {
  BatchBenchResult result;
  std::vector<RequestState> requests = make_requests();
  Iteration& iteration = model_.iteration();
  PassPlanner& planner = model_.planner();
  const MetadataCounts before = planner.counts();
  const double build_before = planner.build_seconds();

  const int64_t begin = options_.synthetic_context
                            ? std::max<int64_t>(0, options_.context_len - kSyntheticSuffix)
                            : 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t at = begin; at < options_.context_len; at += kChunkRows) {
    std::vector<PrefillRows> chunks;
    for (RequestState& request : requests)
      chunks.push_back({&request, static_cast<int32_t>(at),
                        static_cast<int32_t>(std::min(options_.context_len, at + kChunkRows))});
    iteration.prefill(chunks);
  }
  result.ttft_s = seconds_since(start);
  result.prefill_tokens = (options_.context_len - begin) * options_.batch_size;
  const MetadataCounts between = planner.counts();
  const double build_between = planner.build_seconds();
  result.prefill_metadata = difference(between, before);
  result.prefill_metadata_s = build_between - build_before;

  std::vector<RequestState*> running;
  for (RequestState& request : requests) running.push_back(&request);
  decode(std::move(running), result);
  result.decode_metadata = difference(planner.counts(), between);
  result.metadata_s = planner.build_seconds() - build_between;
  for (RequestState& request : requests) {
    // What was launched before it was known to have ended is nobody's.
    request.tokens.resize(static_cast<size_t>(options_.context_len + options_.output_len));
    result.ids.insert(result.ids.end(), request.tokens.begin() + options_.context_len,
                      request.tokens.end());
    result.decode_tokens += output_len(request) - 1;
  }
  return result;
}

}  // namespace foresail
