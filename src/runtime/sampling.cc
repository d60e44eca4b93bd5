#include "runtime/sampling.h"

#include <limits>

#include "kernels/drawable_tokens.h"

namespace foresail {
namespace {

constexpr float kBlocked = -std::numeric_limits<float>::infinity();

void apply_penalties(std::span<float> logits, const SamplingParams& params,
                     const TokenCounts& counts) {
  if (!params.has_penalties()) return;
  const Penalties penalties = penalties_of(params);
  for (const auto& [token, count] : counts.counts())
    if (token >= 0 && token < static_cast<int32_t>(logits.size()))
      logits[token] =
          penalised_logit(logits[token], penalties, count.in_prompt, count.output_count);
}

void adjust(std::span<float> logits, const SamplingParams& params, const TokenCounts& counts,
            std::span<const int32_t> blocked, std::span<const uint64_t> allowed) {
  apply_penalties(logits, params, counts);
  for (const auto& [token, bias] : params.logit_bias)
    if (token >= 0 && token < static_cast<int32_t>(logits.size())) logits[token] += bias;
  for (const int32_t token : blocked)
    if (token >= 0 && token < static_cast<int32_t>(logits.size())) logits[token] = kBlocked;
  if (allowed.empty()) return;
  for (size_t i = 0; i < logits.size(); ++i)
    if (!allows(allowed.data(), static_cast<int64_t>(i))) logits[i] = kBlocked;
}

}  // namespace

TokenDraw draw_of(const SamplingParams& params, int64_t position) {
  return {.seed = params.seed,
          .inverse_temperature = params.temperature <= 0.0f ? 0.0 : 1.0 / params.temperature,
          .position = position,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p};
}

Penalties penalties_of(const SamplingParams& params) {
  return {params.repetition_penalty, params.presence_penalty, params.frequency_penalty};
}

int32_t argmax(std::span<const float> logits) {
  int32_t best = 0;
  float best_logit = kBlocked;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best_logit) {
      best_logit = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

int32_t coupled_argmax(std::span<const float> draft_logits, const SamplingParams& params,
                       int64_t position, std::span<const int32_t> token_of,
                       std::span<const uint64_t> allowed) {
  std::vector<float> under_mask;
  if (!allowed.empty()) {
    under_mask.assign(draft_logits.begin(), draft_logits.end());
    for (size_t i = 0; i < under_mask.size(); ++i)
      if (!allows(allowed.data(), token_of.empty() ? static_cast<int64_t>(i) : token_of[i]))
        under_mask[i] = kBlocked;
    draft_logits = under_mask;
  }
  if (params.temperature <= 0.0f) return argmax(draft_logits);
  return draw_token(draft_logits, draw_of(params, position),
                    token_of.empty() ? nullptr : token_of.data());
}

Distribution Sampler::distribution(std::span<float> logits, const SamplingParams& params,
                                   const TokenCounts& counts, std::span<const int32_t> blocked) {
  adjust(logits, params, counts, blocked, {});
  const DrawableTokens drawable(logits, draw_of(params, 0));
  Distribution result;
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (!drawable.contains(logits[i], token)) continue;
    result.tokens.push_back(token);
    result.probabilities.push_back(drawable.weight(logits[i]));
    total += result.probabilities.back();
  }
  if (result.tokens.empty()) return {{argmax(logits)}, {1.0}};
  for (double& probability : result.probabilities) probability /= total;
  return result;
}

int32_t Sampler::sample(std::span<float> logits, const SamplingParams& params,
                        const TokenCounts& counts, int64_t position,
                        std::span<const int32_t> blocked, std::span<const uint64_t> allowed) {
  adjust(logits, params, counts, blocked, allowed);
  if (params.temperature <= 0.0f) return argmax(logits);
  return draw_token(logits, draw_of(params, position));
}

}  // namespace foresail
