// KernelSet over one instruction set: cuts each operation into tasks for the thread pool.
// How work is cut never changes a row's bits; see isa/tile.h and isa/attention.h for why.
#pragma once

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_matrix.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kernel_set.h"

namespace foresail {

class CpuKernels : public KernelSet {
 public:
  // `attention_oracle`, if given, does the attention of both forms.
  CpuKernels(const IsaOps& isa, DType dtype, ThreadPool& pool,
             std::unique_ptr<KernelSet> attention_oracle);

  std::string_view name() const override { return name_; }
  DType act_dtype() const override { return dtype_; }
  ThreadPool* host_threads() override { return &pool_; }
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
  // What is multiplied: f32 weights, bf16 weights with rows rounded to bf16, or bf16 weights with
  // rows kept in f32. It follows from the rows' type alone, so a row's bits do too.
  enum class Products { kF32, kBF16, kWide };
  Products products_for(bool rows_are_bf16) const {
    if (dtype_ == DType::kF32) return Products::kF32;
    return rows_are_bf16 ? Products::kBF16 : Products::kWide;
  }
  // Bytes of one packed row of n_in inputs.
  int64_t packed_row_bytes(Products products, int64_t n_in) const;
  void pack_rows(Products products, const PackRowsArgs& args) const;
  void gemm(Products products, const GemmArgs& args) const;
  // All rows in kernel order, cut into blocks that are multiplied one by one.
  std::byte* pack_blocks(const RowsIn& rows, int64_t row_count, int64_t n_in);
  // rows[row_count] · weightᵀ with the epilogue of `epilogue` (its out, scale, bias, ... fields).
  void multiply(const RowsIn& rows, int64_t row_count, const CpuMatrix& weight,
                const GemmArgs& epilogue);
  // One weight per head: rows[row_count] shifted by h * in_step elements, out by h * out_step.
  void multiply_heads(const RowsIn& rows, int64_t row_count, std::span<const MatrixPtr> weights,
                      int64_t in_step, int64_t out_step, const GemmArgs& epilogue);
  const IsaOps::Attention& attention_ops() const {
    return dtype_ == DType::kF32 ? isa_.attention_f32 : isa_.attention_bf16;
  }
  float* gemm_scratch(int64_t row_count);  // [threads][row_count][kMaxPanelLanes]
  // body(begin, end, thread) over panels that lie one behind the other: every thread takes a run of
  // neighbours, so that what it reads is one long stream, and helps with the others' when its own
  // is done.
  template <typename Body>
  void for_streams(int64_t panel_count, int64_t panel_bytes, Body&& body);
  // body(row, thread) for each row, in runs of rows that make a task worth waking a thread.
  template <typename Body>
  void for_rows(int64_t row_count, int64_t work_per_row, Body&& body);

  const IsaOps& isa_;
  DType dtype_;
  ThreadPool& pool_;
  std::unique_ptr<KernelSet> attention_oracle_;
  std::string name_;
  WeightArena arena_;
  Workspace workspace_;
  struct alignas(64) Run {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Run> runs_;  // of for_streams, one per thread
};

// The packed form behind a Matrix of this set.
inline const CpuMatrix& cpu_matrix(const Matrix& m) {
  return static_cast<const CpuMatrix&>(m);
}

// Elements of work below which a loop stays on the calling thread: about 10 us of arithmetic, a few
// times the cost of waking a thread.
constexpr int64_t kMinTaskWork = 1 << 15;

// Panels of one task with many rows: a task is some hundred microseconds and the threads finish
// together.
constexpr int64_t kTaskPanels = 4;

// Rows up to which a product is cut for its weights to stream.
constexpr int64_t kStreamRows = 64;

// Weight bytes taken at a time, at most: 30 us of reading. Taking is a locked instruction, which
// waits for every load on its way: 1 MiB is 2 to 4 % faster than 256 KiB, 4 MiB no faster.
constexpr int64_t kStreamBytes = 1 << 20;

template <typename Body>
void CpuKernels::for_streams(int64_t panel_count, int64_t panel_bytes, Body&& body) {
  const int64_t most = std::max<int64_t>(1, kStreamBytes / panel_bytes);
  const int64_t count = std::min(panel_count, static_cast<int64_t>(runs_.size()));
  for (int64_t i = 0; i < count; ++i) {
    Run& run = runs_[static_cast<size_t>(i)];
    run.next.store(panel_count * i / count, std::memory_order_relaxed);
    run.end = panel_count * (i + 1) / count;
  }
  pool_.parallel_for(count, [&](int64_t own, int thread) {
    for (int64_t i = 0; i < count; ++i) {
      Run& run = runs_[static_cast<size_t>((own + i) % count)];
      for (;;) {
        // Less and less towards the end, so that threads finish together.
        const int64_t left = run.end - run.next.load(std::memory_order_relaxed);
        const int64_t taken = std::clamp<int64_t>(left / 2, 1, most);
        const int64_t begin = run.next.fetch_add(taken, std::memory_order_relaxed);
        if (begin >= run.end) break;
        body(begin, std::min(begin + taken, run.end), thread);
      }
    }
  });
}

template <typename Body>
void CpuKernels::for_rows(int64_t row_count, int64_t work_per_row, Body&& body) {
  const int64_t per_task = kMinTaskWork / (work_per_row > 0 ? work_per_row : 1) + 1;
  pool_.parallel_for((row_count + per_task - 1) / per_task, [&](int64_t task, int thread) {
    const int64_t end =
        task + 1 == (row_count + per_task - 1) / per_task ? row_count : (task + 1) * per_task;
    for (int64_t row = task * per_task; row < end; ++row) body(row, thread);
  });
}

}  // namespace foresail
