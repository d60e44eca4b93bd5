// The interface between the model and a device: coarse operations, each named after the fused
// kernel it becomes. `ref` is the oracle, `cpu` the fast host device, `cuda` the GPU.
// Owner: the executor creates one set at start-up and prints its name. Thread rule: one caller.
//
// Where operands lie: every pointer is into memory() (views, constant vectors, rope tables, caches,
// the ids and weights of route), but for three kinds of host memory: HostMatrix, the lists of
// matrices, and what PassInputs names. A device takes the latter in begin_pass, all at once, and
// recognises them by address: between two begin_pass an operation is called with spans of the
// first's PassInputs and no others. A device queues its work; memory().download() waits for it.
//
// Batch invariance is part of the contract of every operation: the result of a row is bitwise the
// same whatever other rows are in the call, however many there are, and wherever the row stands.
// (One exception, named in cuda/cuda_set.h: the fastest attention of the CUDA set.)
// Shapes are named in operands.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/attention_rates.h"
#include "kernels/device_counts.h"
#include "kernels/operands.h"
#include "kernels/pass_inputs.h"
#include "tensor/memory.h"

namespace foresail {

class ThreadPool;

class KernelSet {
 public:
  virtual ~KernelSet() = default;
  virtual std::string_view name() const = 0;  // "ref", "cpu-avx512bf16", ...
  // Type of the weights, and of the fast GEMM inputs: kF32 or kBF16. Wherever an operation takes
  // `act` rows it also takes kF32 rows; products are then formed in f32 without rounding the rows.
  // That is free where weights stream from memory (few rows) and halves the speed where arithmetic
  // is the limit (many rows).
  virtual DType act_dtype() const = 0;

  // Where operands lie. What is allocated there is released before the set is destroyed.
  virtual Memory& memory() { return host_memory(); }
  // Comes before the operations of every forward pass. True: a recording of them was started, so
  // they need not be asked for.
  virtual bool begin_pass(const PassInputs& inputs) {
    (void)inputs;
    return false;
  }
  // Comes after them.
  virtual void end_pass() {}
  // Around the layers of a target, so that their launches can be counted.
  virtual void begin_layers(int64_t count) { (void)count; }
  virtual void end_layers() {}
  // Passes between the two are asked for without a look at what they give: a device may start them
  // together.
  virtual void begin_chain() {}
  virtual void end_chain() {}
  // Whether a pass should end with choose_tokens: where fetching logits would make the host wait.
  virtual bool prefers_choosing() const { return false; }
  // Those that its operations run on, for the host's own work between them; null: none.
  virtual ThreadPool* host_threads() { return nullptr; }
  // How the two forms of attention over such a cache compare.
  virtual AttentionRates attention_rates(const LatentCache& cache, int head_count) const {
    (void)cache, (void)head_count;
    return {};
  }
  virtual DeviceCounts counts() { return {}; }
  // Begins anew to time the stretches of DeviceCounts, or stops. It costs a little by itself.
  virtual void time_work(bool on) { (void)on; }

  virtual MatrixPtr pack(const HostMatrix& weight) = 0;

  // out[T, H] f32 = scale * table[ids]; table [V, H] kF32/kBF16. 0 <= ids < V (checked upstream).
  virtual void embed(std::span<const int32_t> ids, const MatrixView& table, float scale,
                     const MatrixView& out) = 0;
  // x, out [T, N] of either dtype; y = x * rsqrt(mean(x^2) + eps) * weight, computed in f32.
  virtual void rms_norm(const MatrixView& x, const float* weight, float eps,
                        const MatrixView& out) = 0;
  // out f32 [T, n_out] = (accumulate ? out : 0) + scale * (x·Wᵀ + bias). x act [T, n_in].
  virtual void linear(const MatrixView& x, const Matrix& weight, const float* bias, float scale,
                      bool accumulate, const MatrixView& out) = 0;
  // gate_up f32 [T, 2 * inner] -> act [T, inner]: silu(gate) * up.
  virtual void silu_mul(const MatrixView& gate_up, const MatrixView& out) = 0;
  // Any dtype to any dtype, [T, N].
  virtual void convert(const MatrixView& in, const MatrixView& out) = 0;
  // Rows `rows` of `in` into `out`, of the same width and dtype. The host's own by default.
  virtual void gather_rows(const MatrixView& in, std::span<const int32_t> rows,
                           const MatrixView& out);
  // rows f32 [T, c + r]: row t becomes row slots[t] of the cache, as it is (negative: it is not
  // written). The host's own by default.
  virtual void store_rows(const MatrixView& rows, std::span<const int32_t> slots,
                          const LatentCache& cache);

  // tokens[i]: what draws[i] draws from row i of logits, f32 [T, V], through the map where one is
  // given (int32 [V]: tokens of the noise and of the result). With `marks`, ~token if its logit is
  // not a number. The arithmetic of token_choice.h. The host's own by default.
  virtual void choose_tokens(const MatrixView& logits, std::span<const TokenDraw> draws,
                             const int32_t* token_map, bool marks, int32_t* tokens);
  // As choose_tokens, with marks, from logits that change first as the terms of each row say; they
  // lie in `logits` as they were. Then the tokens of rows that stand are counted in the table, and
  // the log probabilities of these rows, of the logits as they were, are left where they are
  // wanted. The arithmetic of token_terms.h. The host's own by default.
  virtual void choose_with_terms(const MatrixView& logits, std::span<const TokenDraw> draws,
                                 const ChoiceTerms& terms, int32_t* tokens);
  // Rows of the pass that token_ids were fed to, against the tokens chosen from them: lag[s], the
  // rows of sequence s that do not stand (accept_rows()); next_tokens [T], what follows each row
  // that stands, and some token elsewhere. The host's own by default.
  virtual void accept_drafts(const int32_t* tokens, std::span<const int32_t> token_ids,
                             std::span<const SequenceRows> sequences,
                             std::span<const int32_t> pretended, int32_t* next_tokens,
                             int32_t* lag);

  // In place on q f32 [T, nh * (n + r)]: rotates the last r of each head to positions[t], then
  // multiplies the whole row by row_scale[t] (null: 1).
  virtual void rotate_query(const MatrixView& q, int head_count, const RopeTable& rope,
                            std::span<const int32_t> positions, const float* row_scale) = 0;
  // kv f32 [T, c + r]: norms the first c, rotates the last r, writes row slots[t] of the cache
  // (slot = page * page_size + offset; negative: the row is not written).
  virtual void store_latent(const MatrixView& kv, const float* norm_weight, float eps,
                            const RopeTable& rope, std::span<const int32_t> positions,
                            std::span<const int32_t> slots, const LatentCache& cache) = 0;
  // Type of the queries that latent_attention takes, and then also of what it gives: kF32, or kBF16
  // where its kernel would round them anyway. absorb_query writes either.
  virtual DType latent_query_dtype(const LatentCache& cache, int head_count) const {
    (void)cache, (void)head_count;
    return DType::kF32;
  }
  // q f32 [T, nh * (n + r)] -> out [T, nh * (c + r)]: per head [q_nope·W_UK | q_pe].
  // w_uk_t[h] is [c, n] (n_out = c).
  virtual void absorb_query(const MatrixView& q, std::span<const MatrixPtr> w_uk_t, int nope_dim,
                            int rope_dim, const MatrixView& out) = 0;
  // Absorbed attention. q [T, nh * (c + r)] -> out act [T, nh * c]. Rows of padding sequences
  // are left untouched.
  virtual void latent_attention(const MatrixView& q, int head_count, float softmax_scale,
                                std::span<const SequenceRows> sequences, const LatentCache& cache,
                                const MatrixView& out) = 0;
  // in act [T, nh * c] -> out act [T, nh * v] through w_uv[h] [v, c].
  virtual void value_up(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                        const MatrixView& out) = 0;

  // Expanded attention, step 1: keys [key_begin, key_begin + keys) of one request, up-projected
  // from the cache: k_nope f32 [keys, nh * n], k_rope f32 [keys, r], value f32 [keys, nh * v].
  // w_uk[h] is [n, c], w_uv[h] is [v, c].
  virtual void expand_latent(const SequenceRows& sequence, int64_t key_begin,
                             const LatentCache& cache, std::span<const MatrixPtr> w_uk,
                             std::span<const MatrixPtr> w_uv, const MatrixView& k_nope,
                             const MatrixView& k_rope, const MatrixView& value) = 0;
  // Step 2: q f32 [rows, nh * (n + r)] over `keys`; causal: row i sees the first
  // key_count - rows + 1 + i keys, otherwise all. out f32 [rows, nh * v], lse f32 [rows, nh]:
  // natural log of the summed exponentials of the scaled scores; no key visible: out 0, lse -inf.
  virtual void expanded_attention(const MatrixView& q, int head_count, float softmax_scale,
                                  bool causal, const ExpandedKeys& keys, const MatrixView& out,
                                  const MatrixView& lse) = 0;
  // Step 3: (out, lse) <- merge of (out, lse) and (other, other_lse); exact when either is empty.
  virtual void merge_attention(const MatrixView& other, const MatrixView& other_lse,
                               const MatrixView& out, const MatrixView& lse) = 0;

  // logits f32 [T, E] -> ids int32 [T, k] (best first; ties: lowest id), weights f32 [T, k].
  // NaN logits never yield an id out of range.
  virtual void route(const MatrixView& logits, const RouteParams& params, int32_t* ids,
                     float* weights) = 0;
  // out f32 [T, H] += sum over the k experts of a row of weight * down(silu(gate x) * up x), added
  // in ascending expert id. Each distinct expert's weights are read once per call.
  virtual void experts(const MatrixView& x, std::span<const ExpertWeights> experts,
                       const int32_t* ids, const float* weights, int top_k,
                       const MatrixView& out) = 0;

  // Fused forms, for sets that have them: each gives, to the bit, what the operations named give
  // one after the other, which is what it does by default. Scratch and q hold anything afterwards.

  // rms_norm; linear for each projection. x may be f32 where products take bf16 rows.
  virtual void project(const MatrixView& x, const RowNorm& norm,
                       std::span<const RowProduct> projections);
  // rotate_query, store_latent, absorb_query. Arguments as there; out [T, nh * (c + r)].
  virtual void latent_inputs(const MatrixView& q, const MatrixView& kv, const LatentInputs& inputs,
                             const LatentCache& cache, const MatrixView& out);
  // value_up into `values`, which is scratch; linear of them: output.out += scale * (values·Wᵀ +
  // bias).
  virtual void project_values(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                              const MatrixView& values, float scale, const RowProduct& output);
  // rms_norm, linear, silu_mul, linear: out f32 [T, H] += scale * down(silu(gate x) * up x). out
  // may be x where there is a norm.
  virtual void gated_mlp(const MatrixView& x, const RowNorm& norm, const ExpertWeights& weights,
                         float scale, const GatedScratch& scratch, const MatrixView& out);
  // rms_norm, linear, route, experts, gated_mlp of the shared expert: out += both. out may be x
  // where there is a norm.
  virtual void mix_experts(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                           const MixtureScratch& scratch, const MatrixView& out);
};

}  // namespace foresail
