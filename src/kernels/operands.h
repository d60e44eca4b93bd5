// What the operations of a KernelSet take: views and descriptions, which own nothing but Matrix.
//
// Shapes: T rows (tokens), H hidden, nh heads, n nope dims, r rope dims, v value dims, c latent
// rank (kv_lora_rank), E experts, k experts per token. Matrices are row-major.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/token_terms.h"
#include "tensor/dtype.h"

namespace foresail {

// [rows, cols] with `stride` elements between rows; kF32 or kBF16. Does not own.
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements
};

// A weight as it lies in the checkpoint: [n_out, n_in], kF32, kBF16 or kF16.
struct HostMatrix {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t n_out = 0;
  int64_t n_in = 0;
  int64_t stride = 0;       // elements between output rows
  bool transposed = false;  // data is [n_in, n_out] instead; stride is between its rows
};

// A weight in the device's own layout; made by KernelSet::pack, used only by the same set.
class Matrix {
 public:
  Matrix(int64_t n_out, int64_t n_in) : n_out_(n_out), n_in_(n_in) {}
  virtual ~Matrix() = default;
  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  virtual uint64_t size_bytes() const = 0;

 private:
  int64_t n_out_;
  int64_t n_in_;
};
using MatrixPtr = std::unique_ptr<const Matrix>;

enum class RopeLayout { kAdjacentPairs, kHalfSplit };  // pairs (2i, 2i+1) or (i, i + r/2)

// cos/sin are [max_position, r/2] f32 tables with the YaRN amplitude already multiplied in.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int rope_dim = 0;
  RopeLayout layout = RopeLayout::kAdjacentPairs;
};

// The latent cache of one layer, [pages, page_size, c + r]; kF32, kBF16 or kF8E4M3. A row is the
// normed latent followed by the rotated shared key.
struct LatentCache {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  int page_size = 0;       // tokens
  int latent_dim = 0;      // c
  int rope_dim = 0;        // r
  float scale = 1.0f;      // kF8E4M3: a number is its code times this
  int64_t page_count = 0;  // of the whole cache; 0: not known, which the CPU does not need
};

enum class GateScore { kSoftmax, kSigmoid };
enum class GroupScore { kNone, kMax, kTopTwoSum };  // none: every expert may be chosen

// models.md names: noaux_tc = sigmoid + bias + kTopTwoSum; group_limited_greedy = softmax + kMax.
struct RouteParams {
  GateScore score = GateScore::kSigmoid;
  GroupScore group_score = GroupScore::kNone;
  int expert_count = 0;
  int top_k = 0;
  int group_count = 1;
  int top_groups = 1;
  bool normalize = false;       // weights /= (sum + 1e-20)
  float scale = 1.0f;           // weights *= scale
  const float* bias = nullptr;  // [E] added for the choice only; null: none
};

struct ExpertWeights {
  const Matrix* gate_up = nullptr;  // [2 * inner, H]: gate rows first, then up rows
  const Matrix* down = nullptr;     // [H, inner]
};

// Up-projected keys and values of one request; dense rows.
struct ExpandedKeys {
  const float* k_nope = nullptr;  // [keys, nh, n]
  const float* k_rope = nullptr;  // [keys, r], one for all heads
  const float* value = nullptr;   // [keys, nh, v]
  int64_t key_count = 0;
  int rope_dim = 0;    // r
  bool exact = false;  // f32 products also in a bf16 set
};

// A norm of the rows that an operation reads. weight null: none, they are taken as they are.
struct RowNorm {
  const float* weight = nullptr;
  float eps = 0.0f;
  MatrixView normed;  // scratch of the rows' shape, of the type that products take
};

// One of several products of the same rows.
struct RowProduct {
  const Matrix* weight = nullptr;
  const float* bias = nullptr;
  MatrixView out;  // f32 [T, n_out]
};

// How a layer makes what absorbed attention reads; see rotate_query, store_latent, absorb_query.
struct LatentInputs {
  int head_count = 0;
  int nope_dim = 0;
  std::span<const MatrixPtr> w_uk_t;
  const float* norm_weight = nullptr;
  float norm_eps = 0.0f;
  RopeTable rope;
  std::span<const int32_t> positions;
  std::span<const int32_t> slots;
  const float* row_scale = nullptr;
};

// Scratch of a gated MLP.
struct GatedScratch {
  MatrixView gate_up;  // f32 [T, 2 * inner]
  MatrixView inner;    // of the type that products take [T, inner]
};

// What changes the logits that tokens are chosen from, and where it is kept.
struct ChoiceTerms {
  std::span<const DrawTerms> rows;  // [draws]; those of begin_pass
  std::span<const int32_t>
      token_ids;                    // of the pass; every row is drawn where one has rows before it
  TokenTerms* table = nullptr;      // [requests, V]
  RowLogprobs* logprobs = nullptr;  // [draws]; null where no row wants them
  const uint64_t* masks = nullptr;  // [masks, mask_words(V)]; null where no row has one
};

// Routed experts, and one that serves every row.
struct Mixture {
  const Matrix* router = nullptr;  // [E, H]
  RouteParams route;
  std::span<const ExpertWeights> experts;
  ExpertWeights shared;  // null: none
};
struct MixtureScratch {
  MatrixView logits;         // f32 [T, E]
  int32_t* ids = nullptr;    // [T, k]
  float* weights = nullptr;  // [T, k]
  GatedScratch shared;       // where there is a shared expert
};

}  // namespace foresail
