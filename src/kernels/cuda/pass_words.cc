#include "kernels/cuda/pass_words.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace foresail::cuda {
namespace {

int64_t append(std::vector<int32_t>& words, std::span<const int32_t> part) {
  const auto begin = static_cast<int64_t>(words.size());
  words.insert(words.end(), part.begin(), part.end());
  return begin;
}

int64_t append_zeros(std::vector<int32_t>& words, int64_t count) {
  const auto begin = static_cast<int64_t>(words.size());
  words.resize(words.size() + static_cast<size_t>(count));
  return begin;
}

}  // namespace

void lay_out(const PassInputs& inputs, PassWords& out) {
  std::vector<int32_t>& words = out.words;
  words.clear();
  out.runs.clear();
  static_assert(sizeof(TokenDraw) % sizeof(int32_t) == 0);
  out.draws = append_zeros(words, static_cast<int64_t>(inputs.draws.size_bytes() / 4));
  if (!inputs.draws.empty())
    std::memcpy(words.data(), inputs.draws.data(), inputs.draws.size_bytes());
  const auto row_count = static_cast<int64_t>(inputs.positions.size());
  out.token_ids = append(words, inputs.token_ids);
  out.positions = append(words, inputs.positions);
  out.slots = append(words, inputs.slots);
  out.row_scale = static_cast<int64_t>(words.size());
  for (const float scale : inputs.row_scale) words.push_back(std::bit_cast<int32_t>(scale));
  out.wanted_rows = append(words, inputs.wanted_rows);

  out.visible = append_zeros(words, row_count);
  out.table_row = append_zeros(words, row_count);
  out.most_visible = 0;
  std::vector<int32_t> ends, tables;
  for (size_t s = 0; s < inputs.sequences.size(); ++s) {
    const SequenceRows& sequence = inputs.sequences[s];
    if (sequence.kv_end <= 0) continue;
    out.most_visible = std::max(out.most_visible, sequence.kv_end);
    for (int32_t i = 0; i < sequence.row_count; ++i) {
      words[out.visible + sequence.row_begin + i] = sequence.kv_end - sequence.row_count + 1 + i;
      words[out.table_row + sequence.row_begin + i] = static_cast<int32_t>(s);
    }
    for (int32_t begin = 0; begin < sequence.row_count; begin += kMostQueryRows) {
      const int32_t q_len = std::min(kMostQueryRows, sequence.row_count - begin);
      const int32_t row_begin = sequence.row_begin + begin;
      AttentionRun* last = out.runs.empty() ? nullptr : &out.runs.back();
      if (last == nullptr || last->q_len != q_len ||
          last->row_begin + last->batch * last->q_len != row_begin) {
        out.runs.push_back({row_begin, q_len, 0, static_cast<int32_t>(ends.size())});
        last = &out.runs.back();
      }
      ++last->batch;
      ends.push_back(sequence.kv_end - (sequence.row_count - begin - q_len));
      tables.push_back(static_cast<int32_t>(s));
    }
  }
  static_assert(sizeof(DrawTerms) % sizeof(int32_t) == 0 && alignof(DrawTerms) == alignof(int32_t));
  out.terms = append_zeros(words, static_cast<int64_t>(inputs.terms.size_bytes() / 4));
  if (!inputs.terms.empty())
    std::memcpy(words.data() + out.terms, inputs.terms.data(), inputs.terms.size_bytes());
  out.pretended = append(words, inputs.pretended);
  out.row_begin = static_cast<int64_t>(words.size());
  if (!inputs.pretended.empty())
    for (const SequenceRows& sequence : inputs.sequences) words.push_back(sequence.row_begin);
  out.row_count = static_cast<int64_t>(words.size());
  if (!inputs.pretended.empty())
    for (const SequenceRows& sequence : inputs.sequences) words.push_back(sequence.row_count);
  out.carried_tokens = append(words, inputs.carry.tokens);
  out.carried_lags = append(words, inputs.carry.lags);
  out.piece_count = static_cast<int64_t>(ends.size());
  out.piece_end = append(words, ends);
  out.piece_table = append(words, tables);

  if (out.most_visible > 0)
    out.most_visible =
        std::max<int32_t>(std::bit_ceil(static_cast<uint32_t>(out.most_visible)), 512);
  out.table_width = (out.most_visible + inputs.page_size - 1) / inputs.page_size;
  out.tables = append_zeros(words, out.table_width * static_cast<int64_t>(inputs.sequences.size()));
  for (size_t s = 0; s < inputs.sequences.size(); ++s) {
    const SequenceRows& sequence = inputs.sequences[s];
    const int32_t pages = (std::max(sequence.kv_end, 0) + inputs.page_size - 1) / inputs.page_size;
    std::copy_n(sequence.page_table, pages,
                words.begin() + out.tables + static_cast<int64_t>(s) * out.table_width);
  }
}

}  // namespace foresail::cuda
