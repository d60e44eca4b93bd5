#include "engine/digest_kernels.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

#include "base/random.h"
#include "model/scratch.h"

namespace foresail {
namespace {

constexpr int kPieceBits = 20;
constexpr int32_t kPieceMask = (1 << kPieceBits) - 1;
// Columns of a state or of a cached row.
constexpr int kToken = 0;
constexpr int kDigest = 1;
constexpr int kPosition = kDigest + PrefixDigest::kPieces;

class Shape : public Matrix {
 public:
  using Matrix::Matrix;
  uint64_t size_bytes() const override { return 0; }
};

float* row_of(const MatrixView& matrix, int64_t row) {
  return static_cast<float*>(matrix.data) + row * matrix.stride;
}

void clear(const MatrixView& matrix) {
  for (int64_t row = 0; row < matrix.rows; ++row)
    std::fill_n(row_of(matrix, row), matrix.cols, 0.0f);
}

void copy_columns(const MatrixView& from, int first, int count, const MatrixView& to) {
  for (int64_t row = 0; row < to.rows; ++row)
    std::copy_n(row_of(from, row) + first, count, row_of(to, row) + first);
}

uint64_t hash(int32_t token, int64_t position) {
  return mix_bits(mix_bits(static_cast<uint64_t>(token) + 1) ^ static_cast<uint64_t>(position));
}

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what);
}

}  // namespace

PrefixDigest::PrefixDigest(const float* pieces) {
  for (int i = 0; i < kPieces; ++i) pieces_[i] = static_cast<int32_t>(pieces[i]);
}

PrefixDigest PrefixDigest::of(std::span<const int32_t> tokens) {
  PrefixDigest digest;
  for (size_t i = 0; i < tokens.size(); ++i)
    digest = digest.plus(tokens[i], static_cast<int64_t>(i));
  return digest;
}

PrefixDigest PrefixDigest::plus(int32_t token, int64_t position) const {
  PrefixDigest one;
  for (int i = 0; i < kPieces; ++i)
    one.pieces_[i] = static_cast<int32_t>(hash(token, position) >> (i * kPieceBits)) & kPieceMask;
  return *this + one;
}

PrefixDigest PrefixDigest::minus(int32_t token, int64_t position) const {
  PrefixDigest result;
  const PrefixDigest one = PrefixDigest().plus(token, position);
  for (int i = 0; i < kPieces; ++i) result.pieces_[i] = (pieces_[i] - one.pieces_[i]) & kPieceMask;
  return result;
}

PrefixDigest PrefixDigest::operator+(const PrefixDigest& other) const {
  PrefixDigest sum;
  for (int i = 0; i < kPieces; ++i) sum.pieces_[i] = (pieces_[i] + other.pieces_[i]) & kPieceMask;
  return sum;
}

void PrefixDigest::write(float* pieces) const {
  for (int i = 0; i < kPieces; ++i) pieces[i] = static_cast<float>(pieces_[i]);
}

uint64_t PrefixDigest::key() const {
  uint64_t key = 0;
  for (const int32_t piece : pieces_) key = key << kPieceBits | static_cast<uint64_t>(piece);
  return key;
}

PrefixDigest KnownContexts::extend(const PrefixDigest& before, int32_t token, int64_t position) {
  if (!(before == PrefixDigest()) && !links_.contains(before.key()))
    fail(fmt::format("position {}: what it saw is no context ever computed", position));
  if ((before == PrefixDigest()) != (position == 0))
    fail(fmt::format("position {}: the number of keys it saw is wrong", position));
  const PrefixDigest digest = before.plus(token, position);
  links_[digest.key()] = {before, token};
  return digest;
}

std::vector<int32_t> KnownContexts::tokens(const PrefixDigest& digest) const {
  std::vector<int32_t> tokens;
  for (PrefixDigest at = digest; !(at == PrefixDigest());) {
    const auto link = links_.find(at.key());
    if (link == links_.end()) fail("a state of no known context");
    tokens.push_back(link->second.token);
    at = link->second.before;
  }
  std::reverse(tokens.begin(), tokens.end());
  return tokens;
}

MatrixPtr DigestKernels::pack(const HostMatrix& weight) {
  return std::make_unique<Shape>(weight.n_out, weight.n_in);
}

void DigestKernels::embed(std::span<const int32_t> ids, const MatrixView&, float,
                          const MatrixView& out) {
  clear(out);
  for (size_t i = 0; i < ids.size(); ++i)
    row_of(out, static_cast<int64_t>(i))[kToken] = static_cast<float>(ids[i]);
  layer_ = -1;
}

void DigestKernels::rms_norm(const MatrixView& x, const float*, float, const MatrixView& out) {
  convert(x, out);
}

// Matrices are told apart by their shapes: the projections into the cache, out of attention and to
// the vocabulary carry something, all others give zeros.
void DigestKernels::linear(const MatrixView& x, const Matrix& weight, const float*, float,
                           bool accumulate, const MatrixView& out) {
  constexpr int64_t kVocab = 320, kHidden = 64, kLatentRow = 40, kAttended = 64;
  if (!accumulate) clear(out);
  if (weight.n_out() == kVocab) return run_head(x, out);
  if (weight.n_out() == kLatentRow && weight.n_in() == kHidden)
    return copy_columns(x, kToken, kPosition, out);
  if (!accumulate || weight.n_in() != kAttended || layer_ != 0) return;
  for (int64_t row = 0; row < out.rows; ++row) {
    float* state = row_of(out, row);
    const auto token = static_cast<int32_t>(state[kToken]);
    const PrefixDigest seen(row_of(x, row) + kDigest);
    contexts_->extend(seen.minus(token, positions_[row]), token, positions_[row])
        .write(state + kDigest);
  }
}

void DigestKernels::run_head(const MatrixView& x, const MatrixView& logits) const {
  for (int64_t row = 0; row < logits.rows; ++row) {
    const std::vector<int32_t> context = contexts_->tokens(PrefixDigest(row_of(x, row) + kDigest));
    const std::span<float> out(row_of(logits, row), static_cast<size_t>(logits.cols));
    std::fill(out.begin(), out.end(), -100.0f);
    script_(context, out);
  }
}

void DigestKernels::silu_mul(const MatrixView&, const MatrixView& out) {
  clear(out);
}

void DigestKernels::convert(const MatrixView& in, const MatrixView& out) {
  for (int64_t row = 0; row < out.rows; ++row)
    std::copy_n(row_of(in, row), out.cols, row_of(out, row));
}

void DigestKernels::rotate_query(const MatrixView&, int, const RopeTable&,
                                 std::span<const int32_t> positions, const float*) {
  positions_.assign(positions.begin(), positions.end());
}

void DigestKernels::store_latent(const MatrixView& kv, const float*, float, const RopeTable&,
                                 std::span<const int32_t> positions, std::span<const int32_t> slots,
                                 const LatentCache& cache) {
  ++layer_;
  const int64_t width = cache.latent_dim + cache.rope_dim;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    if (slots[i] < cache.page_size) fail("a row written to the sink page");
    if (positions[i] >= position_limit_)
      fail(fmt::format("position {} of {}", positions[i], position_limit_));
    float* row = static_cast<float*>(cache.data) + slots[i] * width;
    std::copy_n(row_of(kv, static_cast<int64_t>(i)), kPosition, row);
    row[kPosition] = static_cast<float>(positions[i] + 1);  // a row never written holds zeros
  }
}

DigestKernels::Row DigestKernels::read(const SequenceRows& sequence, int64_t position,
                                       const LatentCache& cache) const {
  const int32_t page = sequence.page_table[position / cache.page_size];
  if (page <= 0) fail(fmt::format("layer {}, position {}: page {}", layer_, position, page));
  const int64_t slot = int64_t{page} * cache.page_size + position % cache.page_size;
  const float* row =
      static_cast<const float*>(cache.data) + slot * (cache.latent_dim + cache.rope_dim);
  if (row[kPosition] != static_cast<float>(position + 1))
    fail(fmt::format("layer {}, position {}, page {}: the row is that of position {}", layer_,
                     position, page, row[kPosition] - 1));
  return {static_cast<int32_t>(row[kToken]), PrefixDigest(row + kDigest)};
}

void DigestKernels::absorb_query(const MatrixView&, std::span<const MatrixPtr>, int, int,
                                 const MatrixView& out) {
  clear(out);
}

void DigestKernels::latent_attention(const MatrixView&, int, float,
                                     std::span<const SequenceRows> sequences,
                                     const LatentCache& cache, const MatrixView& out) {
  clear(out);
  for (const SequenceRows& sequence : sequences) {
    PrefixDigest sum;
    for (int64_t key = 0; key < sequence.kv_end; ++key) {
      const Row row = read(sequence, key, cache);
      sum = sum.plus(row.token, key);
      if (layer_ > 0 && !(row.digest == sum))
        fail(fmt::format("layer {}, position {}: the row of another context", layer_, key));
      const int64_t own = key - (sequence.kv_end - sequence.row_count);
      if (layer_ == 0 && own >= 0) sum.write(row_of(out, sequence.row_begin + own) + kDigest);
    }
  }
}

void DigestKernels::value_up(const MatrixView& in, std::span<const MatrixPtr>,
                             const MatrixView& out) {
  clear(out);
  copy_columns(in, kDigest, PrefixDigest::kPieces, out);
}

void DigestKernels::expand_latent(const SequenceRows& sequence, int64_t key_begin,
                                  const LatentCache& cache, std::span<const MatrixPtr>,
                                  std::span<const MatrixPtr>, const MatrixView& k_nope,
                                  const MatrixView& k_rope, const MatrixView& value) {
  clear(k_nope);
  clear(k_rope);
  clear(value);
  for (int64_t i = 0; i < value.rows; ++i) {
    const int64_t key = key_begin + i;
    const Row row = read(sequence, key, cache);
    if (layer_ > 0) {
      const PrefixDigest before = key == 0 ? PrefixDigest() : read(sequence, key - 1, cache).digest;
      if (!(row.digest == before.plus(row.token, key)))
        fail(fmt::format("layer {}, position {}: the row of another context", layer_, key));
      continue;
    }
    PrefixDigest().plus(row.token, key).write(row_of(value, i) + kDigest);
  }
}

void DigestKernels::expanded_attention(const MatrixView& q, int, float, bool causal,
                                       const ExpandedKeys& keys, const MatrixView& out,
                                       const MatrixView& lse) {
  clear(out);
  clear(lse);
  for (int64_t row = 0; row < q.rows; ++row) {
    const int64_t visible = causal ? keys.key_count - q.rows + 1 + row : keys.key_count;
    PrefixDigest sum;
    for (int64_t key = 0; key < visible; ++key)
      sum = sum + PrefixDigest(keys.value + key * out.cols + kDigest);
    sum.write(row_of(out, row) + kDigest);
  }
}

void DigestKernels::merge_attention(const MatrixView& other, const MatrixView&,
                                    const MatrixView& out, const MatrixView&) {
  for (int64_t row = 0; row < out.rows; ++row) {
    float* pieces = row_of(out, row) + kDigest;
    (PrefixDigest(pieces) + PrefixDigest(row_of(other, row) + kDigest)).write(pieces);
  }
}

void DigestKernels::route(const MatrixView& logits, const RouteParams& params, int32_t* ids,
                          float* weights) {
  for (int64_t i = 0; i < logits.rows * params.top_k; ++i) {
    ids[i] = static_cast<int32_t>(i % params.top_k);
    weights[i] = 0.0f;
  }
}

void DigestKernels::experts(const MatrixView&, std::span<const ExpertWeights>, const int32_t*,
                            const float*, int, const MatrixView&) {}

}  // namespace foresail
