#include "engine/digest_head.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

#include "model/forward_batch.h"

namespace foresail {
namespace {

constexpr int kVocab = 320;
constexpr int kStateWidth = 64;  // as the target's
// Columns of a state: as DigestKernels writes them.
constexpr int kDigest = 1;
// Columns of a cached entry.
constexpr int kNextToken = 0;
constexpr int kPosition = kDigest + PrefixDigest::kPieces;
constexpr int kGuessed = kPosition + 1;
constexpr CacheShape kShape{6, 2};

[[noreturn]] void fail(int64_t position, const char* what) {
  throw std::runtime_error(fmt::format("draft cache, position {}: {}", position, what));
}

float* entry(const LatentCache& cache, int64_t slot) {
  return static_cast<float*>(cache.data) + slot * (kShape.latent_dim + kShape.rope_dim);
}

}  // namespace

std::vector<CacheShape> DigestHead::cache_shapes() const {
  return {kShape};
}

std::vector<int> DigestHead::target_layers() const {
  return {HiddenCapture::kAfterFinalNorm};
}

DraftHead::Output DigestHead::forward(const DraftBatch& batch,
                                      std::span<const LatentCache> caches) {
  for (size_t row = 0; row < batch.positions.size(); ++row)
    write_row(batch, static_cast<int32_t>(row), caches[0]);
  for (const SequenceRows& sequence : batch.sequences) check_keys(batch, sequence, caches[0]);

  const size_t count = batch.selected_rows.size();
  states_.assign(count * kStateWidth, 0.0f);
  logits_.assign(count * kVocab, -100.0f);
  for (size_t i = 0; i < count; ++i) {
    const int32_t row = batch.selected_rows[i];
    const auto* state = static_cast<const float*>(batch.states.data) + row * batch.states.stride;
    const PrefixDigest after = contexts_->extend(PrefixDigest(state + kDigest),
                                                 batch.next_tokens[row], batch.positions[row] + 1);
    after.write(states_.data() + i * kStateWidth + kDigest);
    logits_[i * kVocab + guess_(contexts_->tokens(after))] = 100.0f;
  }
  const auto rows = static_cast<int64_t>(count);
  return {{states_.data(), DType::kF32, rows, kStateWidth, kStateWidth},
          {logits_.data(), DType::kF32, rows, kVocab, kVocab}};
}

// Entry p pairs the state of position p with the token at p + 1.
void DigestHead::write_row(const DraftBatch& batch, int32_t row, const LatentCache& cache) {
  const int32_t position = batch.positions[row];
  const auto* state = static_cast<const float*>(batch.states.data) + row * batch.states.stride;
  const PrefixDigest digest(state + kDigest);
  if (static_cast<int64_t>(contexts_->tokens(digest).size()) != position + 1)
    fail(position, "the state of another position");
  if (batch.slots[row] < cache.page_size) fail(position, "written to the sink page");
  float* out = entry(cache, batch.slots[row]);
  out[kNextToken] = static_cast<float>(batch.next_tokens[row]);
  digest.write(out + kDigest);
  out[kPosition] = static_cast<float>(position + 1);
  out[kGuessed] = batch.recycled ? 1.0f : 0.0f;
}

// Every entry's state is that of the entry before it plus that entry's next token.
void DigestHead::check_keys(const DraftBatch& batch, const SequenceRows& sequence,
                            const LatentCache& cache) {
  Pass pass{.recycled = batch.recycled,
            .row_count = sequence.row_count,
            .last_position = batch.positions[sequence.row_begin + sequence.row_count - 1],
            .kv_end = sequence.kv_end};
  PrefixDigest expected;
  for (int64_t key = 0; key < sequence.kv_end; ++key) {
    const int32_t page = sequence.page_table[key / cache.page_size];
    const float* row = entry(cache, int64_t{page} * cache.page_size + key % cache.page_size);
    if (row[kPosition] != static_cast<float>(key + 1)) fail(key, "never written");
    if (key > 0 && !(PrefixDigest(row + kDigest) == expected))
      fail(key, "made from another text than the entry before it");
    if (row[kGuessed] > 0.0f)
      ++pass.guessed_keys;
    else if (pass.guessed_keys > 0)
      fail(key, "a verified entry behind a guessed one");
    expected = PrefixDigest(row + kDigest).plus(static_cast<int32_t>(row[kNextToken]), key + 1);
  }
  if (!batch.recycled && pass.guessed_keys > 0) fail(pass.last_position, "a guess among its keys");
  passes_->push_back(pass);
}

}  // namespace foresail
