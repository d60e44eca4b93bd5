#include "engine/validate_request.h"

#include <fmt/core.h>

#include <cmath>
#include <unordered_set>

namespace foresail {
namespace {

constexpr float kMostTemperature = 100.0f;

// Empty when all is well. A comparison that NaN fails counts as out of range.
std::optional<InputError> check_sampling(const SamplingParams& sampling, int64_t vocab_size) {
  const auto outside = [](const char* name, double value, const char* range) {
    return InputError{fmt::format("{} {} is out of range: choose {}", name, value, range), name};
  };
  const auto within = [](float value, float low, float high) {
    return value >= low && value <= high;
  };
  if (!within(sampling.temperature, 0.0f, kMostTemperature))
    return outside("temperature", sampling.temperature, "0 to 100");
  if (sampling.top_k < 0) return outside("top_k", sampling.top_k, "0 (off) or more");
  if (!within(sampling.top_p, 0.0f, 1.0f) || sampling.top_p == 0.0f)
    return outside("top_p", sampling.top_p, "above 0, at most 1");
  if (!within(sampling.min_p, 0.0f, 1.0f)) return outside("min_p", sampling.min_p, "0 to 1");
  if (!within(sampling.repetition_penalty, 1e-3f, 1e3f))
    return outside("repetition_penalty", sampling.repetition_penalty, "0.001 to 1000");
  if (!within(sampling.presence_penalty, -2.0f, 2.0f))
    return outside("presence_penalty", sampling.presence_penalty, "-2 to 2");
  if (!within(sampling.frequency_penalty, -2.0f, 2.0f))
    return outside("frequency_penalty", sampling.frequency_penalty, "-2 to 2");
  std::unordered_set<int32_t> biased;
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token < 0 || token >= vocab_size)
      return InputError{
          fmt::format("logit_bias: token {} is outside the vocabulary of {}", token, vocab_size),
          "logit_bias"};
    // Added up in one order or another they would round differently.
    if (!biased.insert(token).second)
      return InputError{fmt::format("logit_bias: token {} is named twice", token), "logit_bias"};
    if (!std::isfinite(bias))
      return InputError{fmt::format("logit_bias: {} for token {}", bias, token), "logit_bias"};
  }
  return std::nullopt;
}

std::optional<InputError> check_stops(const Request& request, const Tokenizer* tokenizer,
                                      int64_t vocab_size) {
  if (!request.stops.empty() && tokenizer == nullptr)
    return InputError{"stop strings need a tokenizer, and the model folder has none", "stop"};
  for (const std::string& stop : request.stops)
    if (stop.empty()) return InputError{"a stop string is empty", "stop"};
  for (const int32_t id : request.stop_token_ids)
    if (id < 0 || id >= vocab_size)
      return InputError{
          fmt::format("stop_token_ids: {} is outside the vocabulary of {}", id, vocab_size),
          "stop_token_ids"};
  return std::nullopt;
}

std::optional<InputError> check_top_count(const std::optional<int>& count, const char* name) {
  if (!count || (*count >= 0 && *count <= kMostTopLogprobs)) return std::nullopt;
  return InputError{
      fmt::format("{} {} is out of range: choose 0 to {}", name, *count, kMostTopLogprobs), name};
}

}  // namespace

Result<std::vector<int32_t>> validate_request(const Request& request, const Tokenizer* tokenizer,
                                              int64_t vocab_size) {
  if (!request.prompt.empty() && !request.input_ids.empty())
    return input_error("give either prompt or input_ids, not both", "prompt");
  if (!request.prompt.empty() && tokenizer == nullptr)
    return input_error("a text prompt needs a tokenizer, and the model folder has none", "prompt");
  if (auto error = check_sampling(request.sampling, vocab_size)) return tl::unexpected(*error);
  if (auto error = check_stops(request, tokenizer, vocab_size)) return tl::unexpected(*error);
  if (request.max_tokens < 1)
    return input_error(fmt::format("max_tokens {} is below 1", request.max_tokens), "max_tokens");
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens)
    return input_error(fmt::format("min_tokens {} is not between 0 and max_tokens {}",
                                   request.min_tokens, request.max_tokens),
                       "min_tokens");
  if (request.speculative_steps && *request.speculative_steps < 0)
    return input_error(fmt::format("speculative_steps {} is below 0", *request.speculative_steps),
                       "speculative_steps");
  if (auto error = check_top_count(request.top_logprobs, "top_logprobs"))
    return tl::unexpected(*error);
  if (auto error = check_top_count(request.prompt_top_logprobs, "prompt_top_logprobs"))
    return tl::unexpected(*error);
  // No text is a text too: it starts from the begin token, where the model has one.
  std::vector<int32_t> prompt = request.input_ids;
  if (prompt.empty() && tokenizer != nullptr)
    prompt = tokenizer->encode(request.prompt, {.add_bos = true});
  if (prompt.empty())
    return input_error(tokenizer == nullptr ? "the prompt has no token" : kEmptyPrompt, "prompt");
  for (const int32_t id : prompt)
    if (id < 0 || id >= vocab_size)
      return input_error(fmt::format("token id {} is outside the vocabulary of {}", id, vocab_size),
                         "input_ids");
  return prompt;
}

}  // namespace foresail
