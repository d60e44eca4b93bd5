#include "engine/batch_bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/random.h"
#include "engine/measure_step_costs.h"
#include "kernels/element.h"

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
  return foresail::accept_length(accepted, verify_passes);
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
  if (options.synthetic_context) fill_caches();
  set_depth(options.draft_len, options.adaptive);
}

void BatchBench::set_depth(int32_t draft_len, bool adaptive) {
  options_.draft_len = draft_len;
  options_.adaptive = adaptive;
  if (adaptive && !adaptive_depth_)
    adaptive_depth_.emplace(measure_step_costs(model_, options_.batch_size, draft_len));
}

void BatchBench::fill_caches() {
  Memory& memory = model_.kernels().memory();
  for (const LatentCache& cache : model_.store().layers()) {
    const int64_t count =
        model_.page_count() * cache.page_size * (cache.latent_dim + cache.rope_dim);
    const size_t cache_bytes = static_cast<size_t>(count) * size_bytes(cache.dtype);
    Buffer copy(memory.is_host() ? 0 : cache_bytes);
    std::byte* numbers = memory.is_host() ? static_cast<std::byte*>(cache.data) : copy.data();
    for (int64_t i = 0; i < count; ++i) {
      // Unit-scale latents, as after a norm.
      const auto value =
          static_cast<float>(3.4 * random_uniform(options_.seed, i, RandomPurpose::kShuffle) - 1.7);
      store_latent_element(cache, numbers, i, value);
    }
    if (!memory.is_host()) memory.upload(cache.data, numbers, cache_bytes);
  }
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

  const DeviceCounts device_before = model_.kernels().counts();
  std::vector<RequestState*> running;
  for (RequestState& request : requests) running.push_back(&request);
  result.tpot_s.resize(requests.size());
  const auto output_len = [&](const RequestState& request) {
    return static_cast<int64_t>(request.tokens.size()) - options_.context_len;
  };
  const auto decode_start = std::chrono::steady_clock::now();
  const auto choose_depth = [&] {
    const int32_t depth = options_.adaptive
                              ? adaptive_depth_->choose(static_cast<int32_t>(running.size()))
                              : options_.draft_len;
    for (RequestState* request : running) request->draft_steps = depth;
  };
  choose_depth();
  iteration.draft(running);
  double at_s = 0.0;
  while (!running.empty()) {
    for (RequestState* request : running) {
      // No further than asked: what lies past the end has no page.
      const int64_t left = options_.output_len - output_len(*request);
      request->drafts.resize(std::min<size_t>(request->drafts.size(),
                                              static_cast<size_t>(std::max<int64_t>(0, left - 1))));
    }
    const auto same_depth = [&](int32_t depth) {
      return std::all_of(running.begin(), running.end(), [&](const RequestState* request) {
        return static_cast<int32_t>(request->drafts.size()) == depth;
      });
    };
    choose_depth();
    const int32_t depth = running[0]->draft_steps;
    const bool steady = same_depth(depth);
    for (const IterationResult& row : iteration.decode(running)) {
      if (options_.adaptive) adaptive_depth_->observe(row.drafted, row.accepted);
      ++result.verify_passes;
      result.accepted += row.accepted;
    }
    const double now_s = seconds_since(decode_start);
    result.iteration_s.push_back(now_s - at_s);
    at_s = now_s;
    if (options_.adaptive && steady)
      adaptive_depth_->observe_seconds(static_cast<int32_t>(running.size()), depth,
                                       result.iteration_s.back());
    std::erase_if(running, [&](RequestState* request) {
      if (output_len(*request) < options_.output_len) return false;
      result.tpot_s[request->slot] =
          now_s / static_cast<double>(std::max<int64_t>(1, output_len(*request) - 1));
      return true;
    });
  }
  result.decode_metadata = difference(planner.counts(), between);
  result.decode_device = model_.kernels().counts() - device_before;
  result.metadata_s = planner.build_seconds() - build_between;
  for (const RequestState& request : requests) {
    result.ids.insert(result.ids.end(), request.tokens.begin() + options_.context_len,
                      request.tokens.end());
    result.decode_tokens += output_len(request) - 1;
  }
  return result;
}

}  // namespace foresail
