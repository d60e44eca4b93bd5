#include "engine/text_generator.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "attention/attention_path.h"
#include "base/error.h"
#include "engine/stop_matcher.h"
#include "text/detokenizer.h"

namespace foresail {
namespace {

// Rows of one prefill pass: bounds the activations, and is large enough that every weight is read
// once per pass at full arithmetic speed.
constexpr int32_t kPrefillChunkRows = 2048;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The one place where a token enters the output: stop rules, limits, text and counters hang here.
class Commit {
 public:
  Commit(const GenerationOptions& options, const std::vector<int64_t>& end_ids, const Tokenizer* tokenizer,
         const std::function<void(const TokenEvent&)>& on_token, GenerationStats& stats)
      : options_(options), end_ids_(end_ids), on_token_(on_token), stats_(stats), stops_(options.stops) {
    if (tokenizer != nullptr) detokenizer_ = std::make_unique<Detokenizer>(*tokenizer, true);
  }

  // Returns false when the request is finished with this token.
  bool operator()(int32_t token, bool from_draft) {
    ++stats_.output_tokens;
    const bool is_end = !options_.ignore_eos && std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
    const std::string text = is_end || !detokenizer_ ? std::string() : stops_.push(detokenizer_->push(token));
    on_token_({token, from_draft, text});
    if (is_end) return finish(FinishReason::kEndToken);
    if (stops_.matched()) return finish(FinishReason::kStopString);
    if (stats_.output_tokens >= options_.max_tokens) return finish(FinishReason::kLength);
    return true;
  }

 private:
  bool finish(FinishReason reason) {
    stats_.finish = reason;
    if (detokenizer_ && reason != FinishReason::kStopString) {
      const std::string rest = stops_.push(detokenizer_->flush()) + stops_.flush();
      if (!rest.empty()) on_token_({-1, false, rest});
    }
    return false;
  }

  const GenerationOptions& options_;
  const std::vector<int64_t>& end_ids_;
  const std::function<void(const TokenEvent&)>& on_token_;
  GenerationStats& stats_;
  StopMatcher stops_;
  std::unique_ptr<Detokenizer> detokenizer_;
};

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

double GenerationStats::accept_length() const {
  return verify_passes == 0 ? 1.0 : 1.0 + static_cast<double>(accepted) / static_cast<double>(verify_passes);
}

TextGenerator::TextGenerator(LoadedModel& model, const Tokenizer* tokenizer)
    : model_(model), tokenizer_(tokenizer) {
  for (int64_t page = 1; page <= model.pages_per_slot(); ++page) page_table_.push_back(static_cast<int32_t>(page));
}

void TextGenerator::check_prompt(const std::vector<int32_t>& prompt, int64_t max_tokens) const {
  if (prompt.empty()) throw_error(ErrorCode::kUsage, "the prompt is empty: give at least one token");
  for (const int32_t id : prompt)
    if (id < 0 || id >= model_.config().vocab_size)
      throw_error(ErrorCode::kUsage, "token id {} is outside the vocabulary of {}", id, model_.config().vocab_size);
  if (max_tokens < 1) throw_error(ErrorCode::kUsage, "--max-tokens {} must be at least 1", max_tokens);
  const auto needed = static_cast<int64_t>(prompt.size()) + max_tokens;
  if (needed > model_.context_length())
    throw_error(ErrorCode::kUsage,
                "This model's maximum context length is {} tokens: {} prompt tokens and {} new ones were asked for "
                "(raise --context-length or lower --max-tokens)",
                model_.context_length(), prompt.size(), max_tokens);
}

void TextGenerator::prefill(RequestState& request) {
  const auto prompt_len = static_cast<int32_t>(request.tokens.size());
  for (int32_t begin = 0; begin < prompt_len; begin += kPrefillChunkRows) {
    const PrefillRows chunk{&request, begin, std::min(prompt_len, begin + kPrefillChunkRows)};
    model_.iteration().prefill({&chunk, 1}, cheaper_path(model_.config(), chunk.end - chunk.begin, chunk.end));
  }
}

GenerationStats TextGenerator::generate(std::vector<int32_t> prompt, const GenerationOptions& options,
                                        const std::function<void(const TokenEvent&)>& on_token) {
  check_prompt(prompt, options.max_tokens);
  GenerationStats stats;
  stats.prompt_tokens = static_cast<int64_t>(prompt.size());
  const std::vector<int64_t>& end_ids = model_.config().eos_ids;
  Commit commit(options, end_ids, tokenizer_, on_token, stats);

  RequestState request;
  request.page_table = page_table_.data();
  request.tokens = std::move(prompt);
  request.prompt_len = stats.prompt_tokens;
  request.sampling = options.sampling;
  for (const int32_t token : request.tokens) request.counts.add_prompt(token);
  request.blocked.assign(end_ids.begin(), end_ids.end());
  request.blocked_until = stats.prompt_tokens + options.min_tokens;

  const auto start = std::chrono::steady_clock::now();
  prefill(request);
  stats.prefill_s = seconds_since(start);
  const auto decode_start = std::chrono::steady_clock::now();
  const int steps = model_.drafter() == nullptr ? 0 : model_.options().speculative.steps;
  stats.accepted_at.assign(steps, 0);
  stats.drafted_at.assign(steps, 0);
  RequestState* const running[] = {&request};
  bool going = commit(request.tokens.back(), false);
  if (going) model_.iteration().draft(running, steps);
  while (going) {
    const IterationResult result = model_.iteration().decode(running, steps)[0];
    ++stats.verify_passes;
    stats.drafted += result.drafted;
    stats.accepted += result.accepted;
    for (int i = 0; i < result.drafted; ++i) ++stats.drafted_at[i];
    for (int i = 0; i < result.accepted; ++i) ++stats.accepted_at[i];
    for (size_t i = 0; going && i < result.new_tokens.size(); ++i)
      going = commit(result.new_tokens[i], static_cast<int>(i) < result.accepted);
  }
  stats.decode_s = seconds_since(decode_start);
  return stats;
}

}  // namespace foresail
