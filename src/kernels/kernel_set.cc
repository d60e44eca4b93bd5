#include "kernels/kernel_set.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/token_truncation.h"

namespace foresail {
namespace {

std::byte* row_of(const MatrixView& matrix, int64_t row) {
  return static_cast<std::byte*>(matrix.data) +
         row * matrix.stride * static_cast<int64_t>(size_bytes(matrix.dtype));
}

// What top-k, top-p and min-p leave, as the sampler does it: ranked as a whole, cut where it must
// be.
std::vector<int32_t> drawable_tokens(std::span<const float> logits, const TokenDraw& draw) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < static_cast<int32_t>(logits.size()); ++i)
    if (rank_key(logits[i]) > 0) ids.push_back(i);
  const bool truncates = draw.top_k > 0 || draw.top_p < 1.0f || draw.min_p > 0.0f;
  if (draw.inverse_temperature == 0.0 || !truncates || ids.empty()) return ids;
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (draw.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(draw.top_k)));
  const auto weight = [&](int32_t id) {
    return token_weight(logits[id], logits[ids[0]], draw.inverse_temperature);
  };
  uint64_t total = 0, mass = 0;
  for (const int32_t id : ids) total += token_mass(weight(id));
  size_t kept = 0;
  while (kept < ids.size() &&
         (kept == 0 || draw.top_p >= 1.0f || mass < mass_needed(draw.top_p, total)) &&
         weight(ids[kept]) >= static_cast<double>(draw.min_p))
    mass += token_mass(weight(ids[kept++]));
  ids.resize(kept);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

void KernelSet::gather_rows(const MatrixView& in, std::span<const int32_t> rows,
                            const MatrixView& out) {
  const size_t row_bytes = static_cast<size_t>(in.cols) * size_bytes(in.dtype);
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(row_of(out, static_cast<int64_t>(i)), row_of(in, rows[i]), row_bytes);
}

void KernelSet::store_rows(const MatrixView& rows, std::span<const int32_t> slots,
                           const LatentCache& cache) {
  const int64_t width = cache.latent_dim + cache.rope_dim;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    const MatrixView from = {row_of(rows, static_cast<int64_t>(i)), rows.dtype, 1, width, width};
    std::byte* to = static_cast<std::byte*>(cache.data) +
                    slots[i] * width * static_cast<int64_t>(size_bytes(cache.dtype));
    convert(from, {to, cache.dtype, 1, width, width});
  }
}

void KernelSet::choose_tokens(const MatrixView& logits, std::span<const TokenDraw> draws,
                              const int32_t* token_map, bool marks, int32_t* tokens) {
  for (size_t row = 0; row < draws.size(); ++row) {
    const auto* values = reinterpret_cast<const float*>(row_of(logits, static_cast<int64_t>(row)));
    TokenRace race(draws[row]);
    for (const int32_t i : drawable_tokens({values, static_cast<size_t>(logits.cols)}, draws[row]))
      race.enter(i, token_map == nullptr ? i : token_map[i], values[i]);
    const int32_t winner = race.winner();
    const int32_t token = token_map == nullptr ? winner : token_map[winner];
    tokens[row] = marks && std::isnan(values[winner]) ? ~token : token;
  }
}

void KernelSet::accept_drafts(const int32_t* tokens, std::span<const int32_t> token_ids,
                              std::span<const SequenceRows> sequences,
                              std::span<const int32_t> pretended, int32_t* next_tokens,
                              int32_t* lag) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int32_t begin = sequences[s].row_begin;
    const int32_t count = sequences[s].row_count;
    const int32_t* fed = token_ids.data() + begin;
    lag[s] = count - accept_rows(fed, tokens + begin, count, pretended[s]);
    for (int32_t row = 0; row < count; ++row)
      next_tokens[begin + row] =
          row < pretended[s] && row + 1 < count ? fed[row + 1] : without_mark(tokens[begin + row]);
  }
}

namespace {

// The rows that products read.
const MatrixView& normed_rows(KernelSet& kernels, const MatrixView& x, const RowNorm& norm) {
  if (norm.weight == nullptr) return x;
  kernels.rms_norm(x, norm.weight, norm.eps, norm.normed);
  return norm.normed;
}

}  // namespace

void KernelSet::project(const MatrixView& x, const RowNorm& norm,
                        std::span<const RowProduct> projections) {
  const MatrixView& rows = normed_rows(*this, x, norm);
  for (const RowProduct& projection : projections)
    linear(rows, *projection.weight, projection.bias, 1.0f, false, projection.out);
}

void KernelSet::latent_inputs(const MatrixView& q, const MatrixView& kv, const LatentInputs& inputs,
                              const LatentCache& cache, const MatrixView& out) {
  rotate_query(q, inputs.head_count, inputs.rope, inputs.positions, inputs.row_scale);
  store_latent(kv, inputs.norm_weight, inputs.norm_eps, inputs.rope, inputs.positions, inputs.slots,
               cache);
  absorb_query(q, inputs.w_uk_t, inputs.nope_dim, inputs.rope.rope_dim, out);
}

void KernelSet::gated_mlp(const MatrixView& x, const RowNorm& norm, const ExpertWeights& weights,
                          float scale, const GatedScratch& scratch, const MatrixView& out) {
  linear(normed_rows(*this, x, norm), *weights.gate_up, nullptr, 1.0f, false, scratch.gate_up);
  silu_mul(scratch.gate_up, scratch.inner);
  linear(scratch.inner, *weights.down, nullptr, scale, true, out);
}

void KernelSet::mix_experts(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                            const MixtureScratch& scratch, const MatrixView& out) {
  const MatrixView& rows = normed_rows(*this, x, norm);
  linear(rows, *mixture.router, nullptr, 1.0f, false, scratch.logits);
  route(scratch.logits, mixture.route, scratch.ids, scratch.weights);
  experts(rows, mixture.experts, scratch.ids, scratch.weights, mixture.route.top_k, out);
  if (mixture.shared.gate_up != nullptr)
    gated_mlp(rows, {}, mixture.shared, 1.0f, scratch.shared, out);
}

}  // namespace foresail
