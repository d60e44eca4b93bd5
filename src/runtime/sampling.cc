#include "runtime/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/token_truncation.h"

namespace foresail {
namespace {

using Candidate = Sampler::Candidate;
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

bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
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
  if (params.temperature <= 0.0f && allowed.empty()) return argmax(draft_logits);
  TokenRace race(draw_of(params, position));
  for (size_t i = 0; i < draft_logits.size(); ++i) {
    const int32_t token = token_of.empty() ? static_cast<int32_t>(i) : token_of[i];
    if (!allowed.empty() && !allows(allowed.data(), token)) continue;
    race.enter(static_cast<int32_t>(i), token, draft_logits[i]);
  }
  return race.winner();
}

// Fills candidates_ with what top-k keeps, in ascending id unless top-k had to rank.
void Sampler::keep_candidates(std::span<const float> logits, const SamplingParams& params) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > kBlocked) candidates_.push_back({static_cast<int32_t>(i), logits[i]});
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params.top_k, candidates_.end(),
                     better);
    candidates_.resize(params.top_k);
    std::sort(candidates_.begin(), candidates_.end(), better);
  }
  if (candidates_.empty()) return;
  const float largest =
      std::max_element(candidates_.begin(), candidates_.end(),
                       [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; })
          ->logit;
  const double inverse_temperature = 1.0 / params.temperature;
  for (Candidate& candidate : candidates_)
    candidate.weight = token_weight(candidate.logit, largest, inverse_temperature);
  if (params.top_p < 1.0f) keep_top_p(params);
  // The best candidate's weight is 1 by construction.
  std::erase_if(candidates_,
                [&](const Candidate& candidate) { return candidate.weight < params.min_p; });
}

// Keeps the shortest best-first head that holds at least top_p of the mass. The head is usually a
// few tokens, so candidates are ranked in growing blocks rather than all sorted.
void Sampler::keep_top_p(const SamplingParams& params) {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates_) total += token_mass(candidate.weight);
  const uint64_t needed = mass_needed(params.top_p, total);
  uint64_t mass = 0;
  size_t kept = 0;
  for (size_t block = 64; kept < candidates_.size(); block *= 4) {
    const size_t end = std::min(candidates_.size(), kept + block);
    if (end < candidates_.size())
      std::nth_element(candidates_.begin() + kept, candidates_.begin() + end, candidates_.end(),
                       better);
    std::sort(candidates_.begin() + kept, candidates_.begin() + end, better);
    for (; kept < end; ++kept) {
      if (kept > 0 && mass >= needed) {
        candidates_.resize(kept);
        return;
      }
      mass += token_mass(candidates_[kept].weight);
    }
  }
}

Distribution Sampler::distribution(std::span<float> logits, const SamplingParams& params,
                                   const TokenCounts& counts, std::span<const int32_t> blocked) {
  adjust(logits, params, counts, blocked, {});
  keep_candidates(logits, params);
  if (candidates_.empty()) return {{argmax(logits)}, {1.0}};
  Distribution result;
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  for (const Candidate& candidate : candidates_) {
    result.tokens.push_back(candidate.token);
    result.probabilities.push_back(candidate.weight / total);
  }
  return result;
}

int32_t Sampler::sample(std::span<float> logits, const SamplingParams& params,
                        const TokenCounts& counts, int64_t position,
                        std::span<const int32_t> blocked, std::span<const uint64_t> allowed) {
  adjust(logits, params, counts, blocked, allowed);
  if (params.temperature <= 0.0f) return argmax(logits);
  TokenRace race(draw_of(params, position));
  if (params.top_k == 0 && params.top_p >= 1.0f && params.min_p <= 0.0f) {
    for (size_t i = 0; i < logits.size(); ++i)
      race.enter(static_cast<int32_t>(i), static_cast<int32_t>(i), logits[i]);
    return race.winner();
  }
  keep_candidates(logits, params);
  for (const Candidate& candidate : candidates_)
    race.enter(candidate.token, candidate.token, candidate.logit);
  return candidates_.empty() ? argmax(logits) : race.winner();
}

}  // namespace foresail
