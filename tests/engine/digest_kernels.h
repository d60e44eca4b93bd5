// A model that is a pure function context -> logits, run through the real layers, iteration and
// serving loop: a kernel set that carries digests instead of numbers. Every cached row holds its
// token, its position and a digest of all tokens up to it; every pass checks each row it reads. A
// stale page, a wrong page, a row never written or a rejected draft left behind ends the pass with
// an exception, or changes the context and so the output.
// Owned by a LoadedModel; made for the dimensions of tests/goldens/g13_v3_mtp in f32.
// One thread.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/kernel_set.h"

namespace foresail {

// What the model says after `context`, which is never empty. logits [V] come filled with -100.
using Script = std::function<void(std::span<const int32_t> context, std::span<float> logits)>;

// Sum over a prefix of a hash of (token, position), so that partial sums merge in any order; three
// pieces of 20 bits, each exact in an f32.
class PrefixDigest {
 public:
  static constexpr int kPieces = 3;

  PrefixDigest() = default;
  explicit PrefixDigest(const float* pieces);
  static PrefixDigest of(std::span<const int32_t> tokens);
  PrefixDigest plus(int32_t token, int64_t position) const;
  PrefixDigest minus(int32_t token, int64_t position) const;
  PrefixDigest operator+(const PrefixDigest& other) const;
  bool operator==(const PrefixDigest&) const = default;
  void write(float* pieces) const;
  uint64_t key() const;

 private:
  int32_t pieces_[kPieces] = {};
};

// Which tokens a digest stands for: every prefix that was ever computed.
class KnownContexts {
 public:
  // Throws std::runtime_error unless `before` is known or empty.
  PrefixDigest extend(const PrefixDigest& before, int32_t token, int64_t position);
  // Throws std::runtime_error when it is not known.
  std::vector<int32_t> tokens(const PrefixDigest& digest) const;

 private:
  struct Link {
    PrefixDigest before;
    int32_t token = 0;
  };
  std::unordered_map<uint64_t, Link> links_;
};

class DigestKernels : public KernelSet {
 public:
  // position_limit: rows at or beyond it are a fault.
  DigestKernels(Script script, std::shared_ptr<KnownContexts> contexts, int64_t position_limit)
      : script_(std::move(script)),
        contexts_(std::move(contexts)),
        position_limit_(position_limit) {}

  std::string_view name() const override { return "digest"; }
  DType act_dtype() const override { return DType::kF32; }
  MatrixPtr pack(const HostMatrix& weight) override;
  void embed(std::span<const int32_t> ids, const MatrixView& table, float scale,
             const MatrixView& out) override;
  void rms_norm(const MatrixView& x, const float* weight, float eps,
                const MatrixView& out) override;
  void linear(const MatrixView& x, const Matrix& weight, const float* bias, float scale,
              bool accumulate, const MatrixView& out) override;
  void silu_mul(const MatrixView& gate_up, const MatrixView& out) override;
  void convert(const MatrixView& in, const MatrixView& out) override;
  void rotate_query(const MatrixView& q, int head_count, const RopeTable& rope,
                    std::span<const int32_t> positions, const float* row_scale) override;
  void store_latent(const MatrixView& kv, const float* norm_weight, float eps,
                    const RopeTable& rope, std::span<const int32_t> positions,
                    std::span<const int32_t> slots, const LatentCache& cache) override;
  void absorb_query(const MatrixView& q, std::span<const MatrixPtr> w_uk_t, int nope_dim,
                    int rope_dim, const MatrixView& out) override;
  void latent_attention(const MatrixView& q, int head_count, float softmax_scale,
                        std::span<const SequenceRows> sequences, const LatentCache& cache,
                        const MatrixView& out) override;
  void value_up(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                const MatrixView& out) override;
  void expand_latent(const SequenceRows& sequence, int64_t key_begin, const LatentCache& cache,
                     std::span<const MatrixPtr> w_uk, std::span<const MatrixPtr> w_uv,
                     const MatrixView& k_nope, const MatrixView& k_rope,
                     const MatrixView& value) override;
  void expanded_attention(const MatrixView& q, int head_count, float softmax_scale, bool causal,
                          const ExpandedKeys& keys, const MatrixView& out,
                          const MatrixView& lse) override;
  void merge_attention(const MatrixView& other, const MatrixView& other_lse, const MatrixView& out,
                       const MatrixView& lse) override;
  void route(const MatrixView& logits, const RouteParams& params, int32_t* ids,
             float* weights) override;
  void experts(const MatrixView& x, std::span<const ExpertWeights> experts, const int32_t* ids,
               const float* weights, int top_k, const MatrixView& out) override;

 private:
  struct Row {
    int32_t token = 0;
    PrefixDigest digest;  // layers after the first: of all tokens up to this one
  };
  // Key `position` of a sequence; throws unless it is what was written for that position.
  Row read(const SequenceRows& sequence, int64_t position, const LatentCache& cache) const;
  void run_head(const MatrixView& x, const MatrixView& logits) const;

  Script script_;
  std::shared_ptr<KnownContexts> contexts_;
  int64_t position_limit_;
  int layer_ = -1;                  // of the pass under way
  std::vector<int32_t> positions_;  // of its rows
};

}  // namespace foresail
