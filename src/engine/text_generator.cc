#include "engine/text_generator.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "base/error.h"
#include "engine/commit.h"
#include "engine/measure_step_costs.h"
#include "engine/validate_request.h"

namespace foresail {
namespace {

// Rows of one prefill pass: bounds the activations, and is large enough that every weight is read
// once per pass at full arithmetic speed.
constexpr int32_t kPrefillChunkRows = 2048;

// An iteration that is under way.
struct Launched {
  Flight flight;
  std::chrono::steady_clock::time_point start;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void check_generation(const std::vector<int32_t>& prompt, const Request& request,
                      const Tokenizer* tokenizer, const ModelConfig& config,
                      int64_t context_length) {
  if (prompt.empty()) throw_error(ErrorCode::kUsage, "{}", kEmptyPrompt);
  if (request.max_tokens < 1)
    throw_error(ErrorCode::kUsage, "request.max_tokens {} must be at least 1", request.max_tokens);
  Request as_ids = request;
  as_ids.prompt.clear();
  as_ids.input_ids = prompt;
  const auto valid = validate_request(as_ids, tokenizer, config.vocab_size);
  if (!valid) throw_error(ErrorCode::kUsage, "{}", valid.error().message);
  // Not as a sum: max_tokens may be any number.
  const int64_t room = context_length - static_cast<int64_t>(prompt.size());
  if (request.max_tokens > room)
    throw_error(
        ErrorCode::kUsage,
        "This model's maximum context length is {} tokens: {} prompt tokens and {} new ones were "
        "asked for ({}{})",
        context_length, prompt.size(), request.max_tokens,
        room < 1 ? "shorten the prompt" : fmt::format("lower request.max_tokens to {}", room),
        context_length < config.max_positions ? " or raise options.context_length" : "");
}

TextGenerator::TextGenerator(LoadedModel& model, const Tokenizer* tokenizer)
    : model_(model),
      tokenizer_(tokenizer),
      grammars_(tokenizer, model.config().eos_ids, model.config().vocab_size) {
  for (int64_t page = 1; page <= model.pages_per_slot(); ++page)
    page_table_.push_back(static_cast<int32_t>(page));
  const SpeculativeOptions& speculative = model.options().speculative;
  if (model.drafter() != nullptr && speculative.adaptive && speculative.steps > 0)
    adaptive_depth_.emplace(measure_step_costs(model, 1, speculative.steps));
}

void TextGenerator::prefill(RequestState& request) {
  const auto prompt_len = static_cast<int32_t>(request.tokens.size());
  for (int32_t begin = 0; begin < prompt_len; begin += kPrefillChunkRows) {
    const PrefillRows chunk{&request, begin, std::min(prompt_len, begin + kPrefillChunkRows)};
    model_.iteration().prefill({&chunk, 1});
  }
}

GenerationStats TextGenerator::generate(std::vector<int32_t> prompt, const Request& options,
                                        const std::function<void(const Event&)>& on_token) {
  check_generation(prompt, options, tokenizer_, model_.config(), model_.context_length());
  Request with_grammar = options;
  if (const auto error = grammars_.prepare(with_grammar))
    throw_error(ErrorCode::kUsage, "{}", error->message);
  if (with_grammar.grammar != nullptr && model_.options().speculative.simulate_accept_length)
    throw_error(ErrorCode::kUsage, "{}", kSimulatedUnderGrammar);
  GenerationStats stats;
  stats.prompt_tokens = static_cast<int64_t>(prompt.size());
  const std::vector<int64_t>& end_ids = model_.config().eos_ids;
  Commit commit(with_grammar, end_ids, tokenizer_, grammars_.guide(with_grammar));
  const auto still_going = [&](int32_t token, bool from_draft,
                               const std::vector<TokenLogprobs>& logprobs, size_t index,
                               std::span<const int32_t> rejected = {}) {
    Event event = commit(token, from_draft, stats);
    if (index < logprobs.size()) event.logprobs = logprobs[index];
    event.rejected.assign(rejected.begin(), rejected.end());
    on_token(event);
    return !event.finish.has_value();
  };

  RequestState request;
  request.page_table = page_table_.data();
  request.tokens = std::move(prompt);
  request.prompt_len = stats.prompt_tokens;
  request.sampling = options.sampling;
  request.top_logprobs = options.top_logprobs;
  const int most_steps = model_.drafter() == nullptr ? 0 : model_.options().speculative.steps;
  const int depth = std::clamp(options.speculative_steps.value_or(most_steps), 0, most_steps);
  const auto choose_depth = [&] {
    return adaptive_depth_ ? std::min(depth, adaptive_depth_->choose(1)) : depth;
  };
  for (const int32_t token : request.tokens) request.counts.add_prompt(token);
  request.blocked.assign(end_ids.begin(), end_ids.end());
  request.blocked_until = stats.prompt_tokens + options.min_tokens;
  request.guide = commit.guide();

  const auto start = std::chrono::steady_clock::now();
  const auto check_failure = [&] {
    if (!request.failed) return;
    const std::string limit = request.guide.exceeded_limit();
    if (!limit.empty()) throw_error(ErrorCode::kUsage, "{}", OutputGrammars::too_complex(limit));
    throw_error(ErrorCode::kModel, "{}", kNoNumbers);
  };
  prefill(request);
  check_failure();
  stats.ttft_s = stats.prefill_s = seconds_since(start);
  const auto decode_start = std::chrono::steady_clock::now();
  stats.accepted_at.assign(depth, 0);
  stats.drafted_at.assign(depth, 0);
  RequestState* const running[] = {&request};
  Iteration& iteration = model_.iteration();
  bool going = still_going(request.tokens.back(), false, request.logprobs, 0);
  request.draft_steps = choose_depth();
  if (going) iteration.draft(running);

  std::deque<Launched> under_way;  // at most two
  auto last_finished = std::chrono::steady_clock::now();
  // Takes the outcome of the oldest. What ran past the end of the text is of no consequence.
  const auto finish_oldest = [&] {
    const Launched done = std::move(under_way.front());
    under_way.pop_front();
    const IterationResult result = iteration.finish(done.flight)[0];
    const auto started = std::max(done.start, last_finished);
    last_finished = std::chrono::steady_clock::now();
    if (!going) return;
    if (request.failed) {
      going = false;
      while (!under_way.empty()) {
        iteration.finish(under_way.front().flight);
        under_way.pop_front();
      }
    }
    check_failure();
    if (adaptive_depth_) {
      adaptive_depth_->observe(result.drafted, result.accepted);
      if (result.drafted == done.flight.steps)
        adaptive_depth_->observe_seconds(1, result.drafted, seconds_since(started));
    }
    count_verify_pass(stats, result.drafted, result.accepted);
    const auto rejected = std::span(result.drafts).subspan(result.accepted);
    for (size_t i = 0; going && i < result.new_tokens.size(); ++i) {
      const bool from_draft = static_cast<int>(i) < result.accepted;
      going = still_going(result.new_tokens[i], from_draft, result.logprobs, i,
                          from_draft ? std::span<const int32_t>() : rejected);
    }
  };
  const bool launches_ahead = model_.kernels().prefers_choosing();
  while (going) {
    const DecodeRequest wanted = {&request, depth, choose_depth()};
    const Flight* before = under_way.empty() ? nullptr : &under_way.back().flight;
    if (launches_ahead && iteration.choose_order({&wanted, 1}, before) == StartOrder::kAhead) {
      const auto now = std::chrono::steady_clock::now();
      under_way.push_back({iteration.start_ahead({&wanted, 1}, before), now});
      if (under_way.size() > 1) finish_oldest();
      continue;
    }
    while (!under_way.empty()) finish_oldest();
    if (!going) break;
    const auto now = std::chrono::steady_clock::now();
    under_way.push_back({iteration.start({&wanted, 1}), now});
    finish_oldest();
  }
  while (!under_way.empty()) finish_oldest();
  stats.decode_s = seconds_since(decode_start);
  return stats;
}

}  // namespace foresail
