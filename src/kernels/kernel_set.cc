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

}  // namespace foresail
