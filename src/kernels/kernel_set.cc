#include "kernels/kernel_set.h"

#include <cmath>
#include <cstring>

namespace foresail {
namespace {

std::byte* row_of(const MatrixView& matrix, int64_t row) {
  return static_cast<std::byte*>(matrix.data) +
         row * matrix.stride * static_cast<int64_t>(size_bytes(matrix.dtype));
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
    for (int32_t i = 0; i < static_cast<int32_t>(logits.cols); ++i)
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
