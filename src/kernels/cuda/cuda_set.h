// KernelSet on an NVIDIA GPU (sm_80 and newer): bf16 weights, f32 sums, caches of all three types.
// Every operation queues kernels on one stream; memory().download() and wait() are the only waits.
//
// f32 rows are multiplied as two bf16 terms, which keeps 16 bits of their mantissa (gemm.h). A
// row's bits depend on nothing but the row, except in sm90/: the tensor-core attention cuts keys
// over the whole batch, with CudaOptions::deterministic those of each row alike; products of many
// rows add in another order, with deterministic they are not used.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/choice.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/pass_words.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/work_clock.h"
#include "tensor/buffer.h"

namespace foresail {

class CudaMatrix final : public Matrix {
 public:
  CudaMatrix(int64_t n_out, int64_t n_in, std::byte* data, uint64_t size_bytes)
      : Matrix(n_out, n_in), data_(data), size_bytes_(size_bytes) {}
  uint64_t size_bytes() const override { return size_bytes_; }
  const void* data() const { return data_; }  // tiles as in gemm.h, device memory of the set
  // The packed form behind a Matrix of this set.
  static const void* data_of(const Matrix& matrix) {
    return static_cast<const CudaMatrix&>(matrix).data();
  }

 private:
  std::byte* data_;
  uint64_t size_bytes_;
};

// What a scratch is given that has to hold so many bytes: it moves when it grows.
constexpr size_t grown_scratch(size_t size_bytes) {
  return size_bytes + size_bytes / 4;
}

cuda::Rows rows_of(const MatrixView& view);
MatrixView row_range(const MatrixView& matrix, int64_t first, int64_t count);
// The product that KernelSet::linear asks for.
cuda::GemmArgs linear_args(const MatrixView& x, const Matrix& weight, const float* bias,
                           float scale, bool accumulate, const MatrixView& out);
cuda::Cache cache_view(const LatentCache& cache);
cuda::Rope rope_view(const RopeTable& rope);

class CudaKernels final : public KernelSet {
 public:
  CudaKernels(const CudaDevice& device, const CudaOptions& options);
  ~CudaKernels() override;

  std::string_view name() const override { return name_; }
  DType act_dtype() const override { return DType::kBF16; }
  Memory& memory() override { return memory_; }
  bool begin_pass(const PassInputs& inputs) override;
  void end_pass() override;
  void begin_layers(int64_t count) override;
  void end_layers() override;
  void begin_chain() override;
  void end_chain() override;
  bool prefers_choosing() const override { return true; }
  AttentionRates attention_rates(const LatentCache& cache, int head_count) const override;
  DeviceCounts counts() override;
  void time_work(bool on) override;
  MatrixPtr pack(const HostMatrix& weight) override;
  void embed(std::span<const int32_t> ids, const MatrixView& table, float scale,
             const MatrixView& out) override;
  void rms_norm(const MatrixView& x, const float* weight, float eps,
                const MatrixView& out) override;
  void linear(const MatrixView& x, const Matrix& weight, const float* bias, float scale,
              bool accumulate, const MatrixView& out) override;
  void silu_mul(const MatrixView& gate_up, const MatrixView& out) override;
  void convert(const MatrixView& in, const MatrixView& out) override;
  void gather_rows(const MatrixView& in, std::span<const int32_t> rows,
                   const MatrixView& out) override;
  void store_rows(const MatrixView& rows, std::span<const int32_t> slots,
                  const LatentCache& cache) override;
  void choose_tokens(const MatrixView& logits, std::span<const TokenDraw> draws,
                     const int32_t* token_map, bool marks, int32_t* tokens) override;
  void choose_with_terms(const MatrixView& logits, std::span<const TokenDraw> draws,
                         const ChoiceTerms& terms, int32_t* tokens) override;
  void accept_drafts(const int32_t* tokens, std::span<const int32_t> token_ids,
                     std::span<const SequenceRows> sequences, std::span<const int32_t> pretended,
                     int32_t* next_tokens, int32_t* lag) override;
  void rotate_query(const MatrixView& q, int head_count, const RopeTable& rope,
                    std::span<const int32_t> positions, const float* row_scale) override;
  void store_latent(const MatrixView& kv, const float* norm_weight, float eps,
                    const RopeTable& rope, std::span<const int32_t> positions,
                    std::span<const int32_t> slots, const LatentCache& cache) override;
  DType latent_query_dtype(const LatentCache& cache, int head_count) const override {
    return fits_tensor_cores(cache, head_count) ? DType::kBF16 : DType::kF32;
  }
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
  void project(const MatrixView& x, const RowNorm& norm,
               std::span<const RowProduct> projections) override;
  void latent_inputs(const MatrixView& q, const MatrixView& kv, const LatentInputs& inputs,
                     const LatentCache& cache, const MatrixView& out) override;
  void project_values(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                      const MatrixView& values, float scale, const RowProduct& output) override;
  void gated_mlp(const MatrixView& x, const RowNorm& norm, const ExpertWeights& weights,
                 float scale, const GatedScratch& scratch, const MatrixView& out) override;
  void mix_experts(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                   const MixtureScratch& scratch, const MatrixView& out) override;

 private:
  // Scratch by purpose, as it is needed: grows, never shrinks. What grows moves, so recordings end.
  enum class Scratch {
    kPackSource,
    kPassWords,
    kQuery,
    kLatentOut,
    kLatents,
    kPartials,
    kTensorCore,
    kPairs,
    kGateUp,
    kHidden,
    kResults,
    kWideRows,
    kWideInner,
    kWideShared,
    kChoice,
    kLogprobs,
    kMeeting,
    kArrivals,
    kKeyTiles,
    kCount
  };
  void* scratch(Scratch purpose, size_t size_bytes);
  cudaStream_t stream() const { return memory_.stream(); }
  // Queues a product: in the one order of sums that gemm.h speaks of, or, where that is not asked
  // for and there are many rows, the faster way.
  // `before`: the product right before, of the same rows, whose split form may serve again.
  void multiply(const cuda::GemmArgs& args, const cuda::GemmArgs* before = nullptr);
  bool goes_wide(const cuda::GemmArgs& args) const;
  bool gates(const cuda::GemmArgs& args) const;  // whether the product may gate its results
  // Rows of a tile of these pairs for wide_product, for experts of `inner` numbers; 0: for gemm.
  int wide_tile_rows(const cuda::GemmArgs& rows, int64_t pairs, int64_t experts,
                     int64_t inner) const;
  // After a kernel was queued.
  void check(std::string_view operation) const;
  // The device's copy of one of the pass's spans; `host` must be that span.
  const int32_t* pass_words(const int32_t* host, std::span<const int32_t> of_pass, int64_t place,
                            std::string_view what) const;
  // Takes off the words of the pass what lags, and puts into them what it carries, on the device.
  void apply_links();
  void apply_carry();
  cuda::LagArgs lag_places();  // where in the words the parts lie that can lag
  // Of draws as they are.
  cuda::ChoiceArgs choice_args(const MatrixView& logits, std::span<const TokenDraw> draws,
                               int32_t* tokens);
  // Device's ids that embed reads.
  const int32_t* fed_tokens(std::span<const int32_t> ids) const;
  const float* scale_words(const float* host) const;  // null: null
  const int32_t* word(int64_t place) const { return device_words_ + place; }
  // Device table of the matrices' data, uploaded when it is new or has changed.
  const void* const* table_of(const void* key, std::vector<const void*> pointers);
  const void* const* head_table(std::span<const MatrixPtr> weights);
  cuda::ExpertTables expert_tables(std::span<const ExpertWeights> experts);
  // Gate and up of a gated MLP; gated in the product where that can be.
  cuda::GemmArgs gate_product(const cuda::GemmArgs& rows, const ExpertWeights& weights,
                              const GatedScratch& scratch) const;
  // norm.normed = the norm of x, if there is one, for that product. True: its rows are split, too.
  bool norm_rows(const MatrixView& x, const RowNorm& norm, const cuda::GemmArgs& product);
  // Of these rows, worked on together.
  int64_t most_pairs(const MatrixView& x, int64_t inner) const;
  cuda::PairLists pair_lists(int64_t pairs, int64_t expert_count, int tile_rows);
  // A product and the next, of what the first gives. What the first returns is the next's: where
  // its rows lie split already, if they do.
  void* multiply_first(const cuda::GemmArgs& first, const cuda::GemmArgs& next, Scratch purpose,
                       const cuda::GemmArgs* before, const cuda::SplitProduct* along = nullptr);
  // Whether the first leaves its results split; only then it may take another product along.
  bool splits_results(const cuda::GemmArgs& first, const cuda::GemmArgs& next) const;
  void multiply_next(const cuda::GemmArgs& next, void* split_rows);
  struct Chosen {  // by each row, on the device
    const int32_t* ids;
    const float* weights;
    int top_k;
  };
  struct TileShape {
    int rows;              // most
    bool is_wide = false;  // for wide_product
  };
  // The rows of the listed experts' first product.
  static cuda::GemmArgs listed_rows(const MatrixView& x, const cuda::PairLists& lists,
                                    const TileShape& tile, int64_t pairs);
  // The shared expert beside the listed ones: its products in their launches, or of it only `down`,
  // if there is one, in the launch of their first.
  struct SharedBeside {
    ExpertWeights weights;
    MatrixView inner;
    const cuda::SplitProduct* down = nullptr;
  };
  // out += what the listed experts of `inner` numbers, and the shared one, make of the rows;
  // `are_split`: those lie split in scratch already. False: shared.down was not taken along.
  bool listed_experts(const cuda::GemmArgs& rows, bool are_split, const cuda::PairLists& lists,
                      int64_t inner, const Chosen& chosen, const SharedBeside& shared,
                      const MatrixView& out);
  // False: not for these shapes, and nothing was done.
  bool mix_listed(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                  const MixtureScratch& scratch, const MatrixView& out);
  bool mix_at_once(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                   const MixtureScratch& scratch, const MatrixView& out);
  bool fits_tensor_cores(const LatentCache& cache, int head_count) const;
  std::vector<cuda::AttentionRun> attention_calls(int head_count) const;
  void tensor_core_attention(const MatrixView& q, int head_count, float softmax_scale,
                             const LatentCache& cache, const MatrixView& out);

  CudaMemory memory_;  // first: everything below lies in it
  WorkClock clock_{memory_.stream()};
  std::string name_;
  int multiprocessors_;
  bool has_sm90_;
  bool deterministic_;
  std::vector<Buffer> weights_;  // packed matrices, one after the other
  size_t weights_used_ = 0;      // of the last buffer
  std::array<Buffer, static_cast<size_t>(Scratch::kCount)> scratch_;

  PassInputs inputs_;
  cuda::PassWords pass_;
  // Uploads under way; each takes the next, so that the host may be some ahead. An event for half
  // of them, not for each: it costs the host as much as a small upload.
  static constexpr size_t kHalfPinned = 8;
  std::array<Buffer, 2 * kHalfPinned> pinned_words_;
  std::array<cudaEvent_t, 2> pinned_read_{};  // the latest uploads of a half have left it
  size_t next_pinned_ = 0;
  void upload_words(std::span<const int32_t> words, int32_t* to);
  int32_t* device_words_ = nullptr;

  struct Table {
    std::vector<const void*> pointers;
    Buffer device;
  };
  std::unordered_map<const void*, Table> tables_;

  // A pass of few rows is recorded as a CUDA graph the second time it is met: the first time,
  // scratch and tables come into being.
  struct Recording {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;  // null: met once
    int64_t launches = 0, layers = 0, layer_launches = 0;
  };
  void count(const Recording& recording);  // a replay of it
  int64_t recorded_launches() const;       // of the pass being recorded, so far
  void forget_recordings();
  void stop_recording() noexcept;  // of a pass that failed
  void launch(cudaGraphExec_t graph);
  bool records_;
  std::unordered_map<std::string, Recording> recordings_;  // by what decides the operations
  std::string recording_;  // key of the pass being recorded, or empty
  Recording counting_;     // its layers

  // Recorded passes of a chain are put off to its end and started as one graph, behind one upload
  // of all their words. A pass that is not recorded yet breaks the chain: those put off start one
  // by one, and so do all that follow.
  struct ChainedPass {
    const Recording* recording = nullptr;
    size_t begin = 0, count = 0;  // of chain_words_
  };
  void start_chained();  // one by one
  cudaGraphExec_t join_chained();
  void forget_chains();
  bool chaining_ = false;
  std::vector<ChainedPass> chained_;
  std::string chain_key_;
  std::vector<int32_t> chain_words_;
  Buffer device_chain_words_;
  std::unordered_map<std::string, cudaGraphExec_t> chains_;  // by the keys of their passes
};

}  // namespace foresail
