#include "engine/engine_loop.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "engine/device.h"
#include "engine/measure_step_costs.h"
#include "engine/record_steps.h"
#include "engine/validate_request.h"
#include "kernels/cuda/cuda_kernels.h"

namespace foresail {
namespace {

// Of the recordings that a device keeps (kMostRecordedPasses) some are left for what comes.
constexpr int32_t kMostStartUpPasses = kMostRecordedPasses / 8 * 5;

SchedulerConfig scheduler_config(LoadedModel& model, const EngineOptions& options) {
  const bool pairs = model.drafter() != nullptr && model.drafter()->has_pair_entries();
  SchedulerConfig config;
  config.cache.capacity = {
      .pool_pages = Pages{model.page_count()},
      .page_size = PageSize(model.options().page_size),
      .max_context_len = Tokens{model.context_length()},
      .max_draft_len = model.drafter() == nullptr ? 0 : options.speculative.steps,
      .drafts_from_bonus = model.drafter() != nullptr && model.drafter()->drafts_from_bonus()};
  config.cache.slots = options.max_running_requests;
  config.cache.prefix_keys = options.disable_radix_cache ? PrefixKeys::kOff
                             : pairs                     ? PrefixKeys::kPairs
                                                         : PrefixKeys::kTokens;
  config.chunk_tokens = Tokens{options.chunked_prefill_size};
  config.step_tokens = Tokens{std::max<int64_t>(8192, options.chunked_prefill_size)};
  config.schedule_seed = options.seed_schedule;
  config.retract_every = options.retract_every;
  return config;
}

// How often a step was started in this order.
int64_t& order_count(EngineStats& stats, StartOrder order) {
  switch (order) {
    case StartOrder::kPrefill:
      return stats.waited_for_prefill;
    case StartOrder::kHostDraws:
      return stats.waited_for_draws;
    case StartOrder::kHostMasks:
      return stats.waited_for_masks;
    case StartOrder::kHostDrafts:
      return stats.waited_for_drafts;
    case StartOrder::kUnequalRows:
      return stats.waited_for_unequal_rows;
    case StartOrder::kScaledQueries:
      return stats.waited_for_scaled_queries;
    case StartOrder::kAhead:
    case StartOrder::kCount:
      break;
  }
  return stats.launched_ahead;
}

double seconds(std::chrono::steady_clock::duration elapsed) {
  return std::chrono::duration<double>(elapsed).count();
}

}  // namespace

EngineLoop::EngineLoop(LoadedModel& model, const Tokenizer* tokenizer, const EngineOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      late_results_(options.late_results),
      launches_ahead_(options.launch_ahead && model.kernels().prefers_choosing()),
      simulates_(options.speculative.simulate_accept_length.has_value()),
      grammars_(tokenizer, model.config().eos_ids, model.config().vocab_size),
      scheduler_(scheduler_config(model, options)),
      executor_(model.iteration(), options.max_running_requests,
                scheduler_.capacity().table_columns(), options.log) {
  const int32_t max_depth = scheduler_.capacity().max_draft_len();
  if (max_depth > 0 && options.speculative.adaptive)
    adaptive_depth_.emplace(measure_step_costs(model, options.max_running_requests, max_depth));
  if (options.record_steps && launches_ahead_ && !options.disable_cuda_graph) record_steps(options);
}

void EngineLoop::record_steps(const EngineOptions& options) {
  const Clock::time_point start = Clock::now();
  const uint64_t free_before = device_memory_bytes(model_.options().device);
  const std::vector<StepShape> shapes =
      common_step_shapes(options.max_running_requests, scheduler_.capacity().max_draft_len(),
                         options.speculative.adaptive, model_.context_length(), kMostStartUpPasses);
  size_t shown = 0;
  totals_.recorded_steps =
      static_cast<int64_t>(record_decode_steps(model_, shapes, [&](size_t done, size_t total) {
        if (4 * done / total == 4 * shown / total) return;
        shown = done;
        write_log(options.log, LogLevel::kInfo, "recording decode steps: {} of {}", done, total);
      }));
  const uint64_t free_after = device_memory_bytes(model_.options().device);
  write_log(options.log, LogLevel::kInfo,
            "recorded {} decode steps in {:.2f} s, {} of device memory", totals_.recorded_steps,
            seconds(Clock::now() - start),
            format_bytes(free_before > free_after ? free_before - free_after : 0));
}

int32_t EngineLoop::choose_draft_len() {
  if (!adaptive_depth_) return scheduler_.capacity().max_draft_len();
  return adaptive_depth_->choose(scheduler_.running_count());
}

Result<PreparedRequest> EngineLoop::prepare(Request request) const {
  Result<std::vector<int32_t>> prompt =
      validate_request(request, tokenizer_, model_.config().vocab_size);
  if (!prompt) return tl::unexpected(prompt.error());
  const Tokens prompt_len{static_cast<int64_t>(prompt->size())};
  const Result<Pages> fits = scheduler_.capacity().fits(prompt_len, Tokens{request.max_tokens});
  if (!fits) return tl::unexpected(fits.error());
  if (const auto error = grammars_.prepare(request)) return tl::unexpected(*error);
  if (request.grammar != nullptr && simulates_) return input_error(kSimulatedUnderGrammar);
  return PreparedRequest{std::move(request), std::move(*prompt)};
}

RequestId EngineLoop::submit(PreparedRequest prepared, EventSink sink,
                             std::function<void(const GenerationStats&)> on_admission) {
  const Request& request = prepared.request;
  const Result<RequestId> id =
      scheduler_.submit({.prompt = prepared.prompt,
                         .max_new_tokens = Tokens{request.max_tokens},
                         .priority = request.priority,
                         .cache_salt = request.cache_salt,
                         .reads_prefix_cache = !request.prompt_top_logprobs,
                         .max_draft_len = request.speculative_steps.value_or(INT32_MAX)});
  FORESAIL_CHECK(id.has_value(), "a prepared request was refused: {}", id.error().message);
  Commit commit(request, model_.config().eos_ids, tokenizer_, grammars_.guide(request));
  auto running = std::make_unique<Running>(
      Running{std::move(prepared), std::move(sink), std::move(on_admission), std::move(commit)});
  running->tokens = running->prepared.prompt;
  running->stats.prompt_tokens = static_cast<int64_t>(running->tokens.size());
  running->submitted = Clock::now();
  running_.emplace(*id, std::move(running));
  return *id;
}

bool EngineLoop::abort(RequestId id, FinishReason reason) {
  if (!scheduler_.abort(id)) return false;
  end_without_token(id, reason);
  return true;
}

bool EngineLoop::step() {
  if (scheduler_.idle()) return false;
  const Clock::time_point step_start = Clock::now();
  StepPlan plan = scheduler_.plan_step(choose_draft_len());
  if (may_launch(plan)) {
    launch(std::move(plan));
  } else {
    settle(0);
    start(plan);
    if (!plan.empty()) run(std::move(plan));
  }
  totals_.step_s += seconds(Clock::now() - step_start);
  return true;
}

// The one decision whether a step is launched before the results of the one before are known.
bool EngineLoop::may_launch(const StepPlan& plan) {
  if (!launches_ahead_ || (plan.empty() && plan.admitted.empty())) return false;
  const StartOrder order = executor_.choose_order(plan);
  ++order_count(totals_, order);
  return order == StartOrder::kAhead;
}

void EngineLoop::launch(StepPlan plan) {
  const Clock::time_point now = Clock::now();
  const bool launched = executor_.launch(plan);
  in_flight_.push_back({std::move(plan), {}, now});
  settle(launched ? 1 : 0);
}

void EngineLoop::run(StepPlan plan) {
  const Clock::time_point run_start = Clock::now();
  StepOutcome outcome = executor_.run(plan);
  observe_time(plan, seconds(Clock::now() - run_start));
  in_flight_.push_back({std::move(plan), std::move(outcome)});
  if (!late_results_) settle(0);
}

// Only steps that did nothing but decode, all rows at one depth.
void EngineLoop::observe_time(const StepPlan& plan, double run_s) {
  if (!adaptive_depth_ || !plan.prefill.empty() || plan.decode.empty()) return;
  const int32_t depth = plan.decode[0].next_draft_len;
  for (const DecodeRow& row : plan.decode)
    if (row.draft_len != depth || row.next_draft_len != depth) return;
  adaptive_depth_->observe_seconds(static_cast<int32_t>(plan.decode.size()), depth, run_s);
}

// A request that is admitted has no step under way, so its committed tokens are its whole history.
void EngineLoop::start(const StepPlan& plan) {
  for (const Admission& admission : plan.admitted) {
    Running& running = *find(admission.request);
    executor_.start(admission.slot, slot_state(running));
    if (admission.resumed) continue;
    if (running.prepared.request.is_probe) {
      probe_tokens_.prompt += static_cast<int64_t>(running.prepared.prompt.size());
      probe_tokens_.cached += admission.reused.value;
    }
    running.admitted = Clock::now();
    running.stats.cached_tokens = admission.reused.value;
    running.stats.admitted = true;
    if (running.on_admission) running.on_admission(running.stats);
  }
}

RequestState EngineLoop::slot_state(const Running& running) const {
  const Request& request = running.prepared.request;
  const std::vector<int64_t>& end_ids = model_.config().eos_ids;
  RequestState state;
  state.tokens = running.tokens;
  state.prompt_len = static_cast<int64_t>(running.prepared.prompt.size());
  state.sampling = request.sampling;
  for (int64_t i = 0; i < static_cast<int64_t>(state.tokens.size()); ++i) {
    if (i < state.prompt_len)
      state.counts.add_prompt(state.tokens[i]);
    else
      state.counts.add_output(state.tokens[i]);
  }
  state.top_logprobs = request.top_logprobs;
  if (running.stats.output_tokens == 0) state.prompt_top_logprobs = request.prompt_top_logprobs;
  state.blocked.assign(end_ids.begin(), end_ids.end());
  state.blocked_until = state.prompt_len + request.min_tokens;
  state.guide = running.commit.guide();
  return state;
}

void EngineLoop::settle(size_t left) {
  while (in_flight_.size() > left) settle_oldest();
}

void EngineLoop::settle_oldest() {
  InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (!done.outcome) {
    done.outcome = executor_.collect();
    const Clock::time_point now = Clock::now();
    observe_time(done.plan, seconds(now - std::max(done.launched, last_collected_)));
    last_collected_ = now;
  }
  StepResult result{.step = done.plan.step, .failed = done.outcome->failed};
  for (const StepOutcome::Row& row : done.outcome->rows)
    result.rows.push_back(commit(row, result.tokens));
  scheduler_.complete(result);
  if (result.failed) fail_all(done.plan);
}

RowResult EngineLoop::commit(const StepOutcome::Row& row, std::vector<int32_t>& tokens) {
  RowResult result{.slot = row.slot};
  Running* running = find(row.request);
  if (running == nullptr) return result;  // ended while the step ran
  if (row.failed) {
    const std::string limit = running->commit.guide().exceeded_limit();
    if (limit.empty())
      ++totals_.nan_logits;
    else
      running->stats.failure = OutputGrammars::too_complex(limit);
    end_without_token(row.request, FinishReason::kFailed);
    result.failed = true;
    return result;
  }
  GenerationStats& stats = running->stats;
  const int accepted = row.result.accepted;
  if (row.verified) {
    count_verify_pass(stats, row.result.drafted, accepted);
    if (adaptive_depth_) adaptive_depth_->observe(row.result.drafted, accepted);
    if (!running->prepared.request.is_probe) {
      ++totals_.verify_passes;
      if (row.result.drafted > 0) ++totals_.draft_passes;
      totals_.drafted += row.result.drafted;
      totals_.accepted += accepted;
    }
  }
  const Clock::time_point now = Clock::now();
  if (stats.output_tokens == 0) {
    running->first_token = now;
    stats.ttft_s = seconds(now - running->submitted);
    stats.prefill_s = seconds(now - running->admitted);
  }
  stats.decode_s = seconds(now - running->first_token);
  for (const int32_t token : row.result.new_tokens) {
    Event event = running->commit(token, result.accept_len < accepted, stats);
    if (!row.result.logprobs.empty()) event.logprobs = row.result.logprobs[result.accept_len];
    if (stats.output_tokens == 1) event.prompt_logprobs = row.result.prompt_logprobs;
    if (result.accept_len == accepted && accepted < row.result.drafted)
      event.rejected.assign(row.result.drafts.begin() + accepted, row.result.drafts.end());
    running->tokens.push_back(token);
    tokens.push_back(token);
    ++result.accept_len;
    result.finished = event.finish.has_value();
    running->sink(event, stats);
    if (result.finished) break;
  }
  if (running->prepared.request.is_probe) probe_tokens_.output += result.accept_len;
  if (result.finished) running_.erase(row.request);
  return result;
}

void EngineLoop::fail_all(const StepPlan& plan) {
  for (const PrefillChunk& chunk : plan.prefill)
    end_without_token(chunk.request, FinishReason::kFailed);
  for (const DecodeRow& row : plan.decode) end_without_token(row.request, FinishReason::kFailed);
}

void EngineLoop::end_without_token(RequestId id, FinishReason reason) {
  Running* running = find(id);
  if (running == nullptr) return;
  running->stats.finish = reason;
  running->sink({.finish = reason}, running->stats);
  running_.erase(id);
}

EngineLoop::Running* EngineLoop::find(RequestId id) {
  const auto it = running_.find(id);
  return it == running_.end() ? nullptr : it->second.get();
}

EngineStats EngineLoop::stats() const {
  const SchedulerStats scheduler = scheduler_.stats();
  EngineStats stats = totals_;
  stats.waiting = scheduler.waiting;
  stats.running = scheduler.running;
  stats.submitted = scheduler.submitted;
  stats.finished = scheduler.finished;
  stats.aborted = scheduler.aborted;
  stats.failed = scheduler.failed;
  stats.retractions = scheduler.retractions;
  stats.steps = scheduler.steps;
  stats.output_tokens = scheduler.committed.value - probe_tokens_.output;
  stats.prompt_tokens = scheduler.prefix_queried.value - probe_tokens_.prompt;
  stats.cached_tokens = scheduler.prefix_hit.value - probe_tokens_.cached;
  const MetadataCounts& metadata = model_.planner().counts();
  stats.attention_plans = metadata.plans;
  stats.key_index_builds = metadata.key_index_builds;
  stats.chunk_lists = metadata.chunk_lists;
  stats.ragged_plans = metadata.ragged_plans;
  stats.fallbacks_segmented = metadata.fallbacks_segmented;
  stats.fallbacks_prefix = metadata.fallbacks_prefix;
  const DeviceCounts device = model_.kernels().counts();
  stats.device_waits = device.waits;
  stats.device_upload_bytes = device.upload_bytes;
  stats.device_download_bytes = device.download_bytes;
  stats.device_passes = device.passes;
  stats.device_replays = device.replays;
  stats.device_wait_s = 1e-9 * static_cast<double>(device.wait_ns);
  const auto chosen = [&](HostChoice reason) {
    return model_.iteration().host_choices()[static_cast<size_t>(reason)];
  };
  stats.chosen_on_device = chosen(HostChoice::kNone);
  stats.chosen_for_logprobs = chosen(HostChoice::kLogprobs);
  stats.chosen_for_memory = chosen(HostChoice::kMemory);
  stats.pages_free = scheduler.pages.free.value;
  stats.pages_cached = scheduler.pages.cached.value;
  stats.pages_owned = scheduler.pages.owned.value;
  stats.pages_in_flight = scheduler.pages.in_flight.value;
  stats.pages_total = scheduler.pages.total.value;
  return stats;
}

}  // namespace foresail
