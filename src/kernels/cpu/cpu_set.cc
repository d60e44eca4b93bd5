#include "kernels/cpu/cpu_set.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/f8_rows.h"
#include "kernels/cpu/isa_select.h"
#include "kernels/ref/ref_kernels.h"

namespace foresail {
namespace {

// Rows packed and multiplied together: 256 rows x 2048 inputs x 2 B = 1 MiB streams from L2/L3
// while a panel group stays in L2.
constexpr int64_t kRowBlock = 256;

int64_t block_count(int64_t row_count) {
  return (row_count + kRowBlock - 1) / kRowBlock;
}
int64_t rows_in_block(int64_t row_count, int64_t block) {
  return std::min(kRowBlock, row_count - block * kRowBlock);
}

bool is_bf16(const MatrixView& view) {
  return view.dtype == DType::kBF16;
}

std::byte* row_ptr(const MatrixView& view, int64_t row, int64_t col = 0) {
  return static_cast<std::byte*>(view.data) +
         (row * view.stride + col) * static_cast<int64_t>(size_bytes(view.dtype));
}

float* f32_row(const MatrixView& view, int64_t row, int64_t col = 0) {
  return static_cast<float*>(view.data) + row * view.stride + col;
}

RowsIn rows_of(const MatrixView& view) {
  return {view.data, view.stride, nullptr, is_bf16(view)};
}

RopeArgs rope_at(const RopeTable& rope, int64_t position) {
  const int64_t half = rope.rope_dim / 2;
  return {rope.cos + position * half, rope.sin + position * half, rope.rope_dim,
          rope.layout == RopeLayout::kHalfSplit};
}

}  // namespace

CpuKernels::CpuKernels(const IsaOps& isa, DType dtype, ThreadPool& pool,
                       std::unique_ptr<KernelSet> attention_oracle)
    : isa_(isa),
      dtype_(dtype),
      pool_(pool),
      attention_oracle_(std::move(attention_oracle)),
      name_(std::string("cpu-") + isa.name),
      runs_(static_cast<size_t>(pool.thread_count())) {}

MatrixPtr CpuKernels::pack(const HostMatrix& weight) {
  return std::make_unique<CpuMatrix>(weight, dtype_, isa_.panel_lanes, arena_, pool_);
}

int64_t CpuKernels::packed_row_bytes(Products products, int64_t n_in) const {
  if (products == Products::kF32) return n_in * 4;
  const int64_t even = (n_in + 1) / 2 * 2;
  return products == Products::kBF16 && isa_.dot_bf16 ? even * 2 : even * 4;
}

void CpuKernels::pack_rows(Products products, const PackRowsArgs& args) const {
  switch (products) {
    case Products::kF32:
      return isa_.pack_rows_f32(args);
    case Products::kBF16:
      return isa_.pack_rows_bf16(args);
    case Products::kWide:
      return isa_.pack_rows_wide(args);
  }
}

void CpuKernels::gemm(Products products, const GemmArgs& args) const {
  switch (products) {
    case Products::kF32:
      return isa_.gemm_f32(args);
    case Products::kBF16:
      return isa_.gemm_bf16(args);
    case Products::kWide:
      return isa_.gemm_wide(args);
  }
}

float* CpuKernels::gemm_scratch(int64_t row_count) {
  return workspace_.get<float>(Scratch::kGemmPartial,
                               pool_.thread_count() * row_count * kMaxPanelLanes);
}

std::byte* CpuKernels::pack_blocks(const RowsIn& rows, int64_t row_count, int64_t n_in) {
  const Products products = products_for(rows.is_bf16);
  const int64_t row_bytes = packed_row_bytes(products, n_in);
  std::byte* packed = workspace_.get<std::byte>(Scratch::kPackedRows, row_count * row_bytes);
  pool_.parallel_for(block_count(row_count), [&](int64_t block, int) {
    const int64_t begin = block * kRowBlock;
    PackRowsArgs args = {rows, rows_in_block(row_count, block), n_in, packed + begin * row_bytes};
    if (rows.index != nullptr) {
      args.rows.index += begin;
    } else {
      args.rows.data =
          static_cast<const std::byte*>(rows.data) + begin * rows.stride * (rows.is_bf16 ? 2 : 4);
    }
    pack_rows(products, args);
  });
  return packed;
}

void CpuKernels::multiply(const RowsIn& rows, int64_t row_count, const CpuMatrix& weight,
                          const GemmArgs& epilogue) {
  const std::byte* packed = pack_blocks(rows, row_count, weight.n_in());
  const Products products = products_for(rows.is_bf16);
  const int64_t row_bytes = packed_row_bytes(products, weight.n_in());
  const int64_t block_rows = std::min(row_count, kRowBlock);
  float* scratch = gemm_scratch(block_rows);
  const int64_t panels = weight.panel_count();
  const auto product = [&](int64_t block, int64_t panel_begin, int64_t panel_end, int thread) {
    const int64_t begin = block * kRowBlock;
    GemmArgs args = epilogue;
    args.packed_rows = packed + begin * row_bytes;
    args.row_count = rows_in_block(row_count, block);
    args.weight = weight.data();
    args.n_in = weight.n_in();
    args.n_out = weight.n_out();
    args.panel_begin = panel_begin;
    args.panel_end = panel_end;
    args.scratch = scratch + thread * block_rows * kMaxPanelLanes;
    args.out = static_cast<std::byte*>(epilogue.out) +
               begin * epilogue.out_stride * (epilogue.out_is_bf16 ? 2 : 4);
    gemm(products, args);
  };
  if (row_count <= kStreamRows)
    return for_streams(panels, weight.panel_bytes(), [&](int64_t begin, int64_t end, int thread) {
      product(0, begin, end, thread);
    });
  const int64_t groups = (panels + kTaskPanels - 1) / kTaskPanels;
  pool_.parallel_for(block_count(row_count) * groups, [&](int64_t task, int thread) {
    const int64_t begin = task % groups * kTaskPanels;
    product(task / groups, begin, std::min(begin + kTaskPanels, panels), thread);
  });
}

void CpuKernels::multiply_heads(const RowsIn& rows, int64_t row_count,
                                std::span<const MatrixPtr> weights, int64_t in_step,
                                int64_t out_step, const GemmArgs& epilogue) {
  if (row_count == 0 || weights.empty()) return;
  const int64_t heads = static_cast<int64_t>(weights.size());
  const int64_t n_in = weights[0]->n_in();
  const Products products = products_for(rows.is_bf16);
  const int64_t row_bytes = packed_row_bytes(products, n_in);
  const int64_t block_rows = std::min(row_count, kRowBlock);
  // Heads that read the same inputs share one packing; otherwise each task packs its own.
  const bool shared = in_step == 0;
  std::byte* packed =
      shared ? pack_blocks(rows, row_count, n_in)
             : workspace_.get<std::byte>(Scratch::kPackedRows,
                                         pool_.thread_count() * block_rows * row_bytes);
  float* scratch = gemm_scratch(block_rows);
  const auto product = [&](int64_t task, int thread) {
    const int64_t head = task % heads;
    const int64_t block = task / heads;
    const int64_t begin = block * kRowBlock;
    const CpuMatrix& weight = cpu_matrix(*weights[static_cast<size_t>(head)]);
    GemmArgs args = epilogue;
    args.row_count = rows_in_block(row_count, block);
    if (shared) {
      args.packed_rows = packed + begin * row_bytes;
    } else {
      PackRowsArgs pack_args = {rows, args.row_count, n_in,
                                packed + thread * block_rows * row_bytes};
      pack_args.rows.data = static_cast<const std::byte*>(rows.data) +
                            (begin * rows.stride + head * in_step) * (rows.is_bf16 ? 2 : 4);
      pack_rows(products, pack_args);
      args.packed_rows = pack_args.out;
    }
    args.weight = weight.data();
    args.n_in = n_in;
    args.n_out = weight.n_out();
    args.panel_end = weight.panel_count();
    args.scratch = scratch + thread * block_rows * kMaxPanelLanes;
    args.out = static_cast<std::byte*>(epilogue.out) +
               (begin * epilogue.out_stride + head * out_step) * (epilogue.out_is_bf16 ? 2 : 4);
    gemm(products, args);
  };
  for_streams(block_count(row_count) * heads, static_cast<int64_t>(weights[0]->size_bytes()),
              [&](int64_t task, int64_t end, int thread) {
                for (; task < end; ++task) product(task, thread);
              });
}

void CpuKernels::embed(std::span<const int32_t> ids, const MatrixView& table, float scale,
                       const MatrixView& out) {
  for_rows(static_cast<int64_t>(ids.size()), out.cols, [&](int64_t t, int) {
    isa_.convert(row_ptr(table, ids[static_cast<size_t>(t)]), is_bf16(table), row_ptr(out, t),
                 is_bf16(out), scale, out.cols);
  });
}

void CpuKernels::rms_norm(const MatrixView& x, const float* weight, float eps,
                          const MatrixView& out) {
  for_rows(x.rows, x.cols, [&](int64_t t, int) {
    isa_.rms_norm(row_ptr(x, t), is_bf16(x), weight, eps, row_ptr(out, t), is_bf16(out), x.cols);
  });
}

void CpuKernels::linear(const MatrixView& x, const Matrix& weight, const float* bias, float scale,
                        bool accumulate, const MatrixView& out) {
  FORESAIL_CHECK(x.cols == weight.n_in() && out.cols == weight.n_out(),
                 "x [{}, {}], weight [{}, {}], out [{}, {}]", x.rows, x.cols, weight.n_out(),
                 weight.n_in(), out.rows, out.cols);
  GemmArgs epilogue;
  epilogue.out = out.data;
  epilogue.out_stride = out.stride;
  epilogue.out_is_bf16 = is_bf16(out);
  epilogue.accumulate = accumulate;
  epilogue.scale = scale;
  epilogue.bias = bias;
  multiply(rows_of(x), x.rows, cpu_matrix(weight), epilogue);
}

void CpuKernels::silu_mul(const MatrixView& gate_up, const MatrixView& out) {
  // exp makes an element some ten times as dear as a copied one.
  for_rows(out.rows, out.cols * 8, [&](int64_t t, int) {
    isa_.silu_mul(f32_row(gate_up, t), f32_row(gate_up, t, out.cols), row_ptr(out, t), is_bf16(out),
                  out.cols);
  });
}

void CpuKernels::convert(const MatrixView& in, const MatrixView& out) {
  for_rows(in.rows, in.cols, [&](int64_t t, int) {
    isa_.convert(row_ptr(in, t), is_bf16(in), row_ptr(out, t), is_bf16(out), 1.0f, in.cols);
  });
}

void CpuKernels::rotate_query(const MatrixView& q, int head_count, const RopeTable& rope,
                              std::span<const int32_t> positions, const float* row_scale) {
  for_rows(q.rows, q.cols, [&](int64_t t, int) {
    isa_.rotate_heads(f32_row(q, t), head_count, q.cols / head_count,
                      rope_at(rope, positions[static_cast<size_t>(t)]),
                      row_scale != nullptr ? row_scale[t] : 1.0f);
  });
}

void CpuKernels::store_latent(const MatrixView& kv, const float* norm_weight, float eps,
                              const RopeTable& rope, std::span<const int32_t> positions,
                              std::span<const int32_t> slots, const LatentCache& cache) {
  FORESAIL_CHECK(cache.rope_dim <= kMaxRopeDim, "rope_dim {}", cache.rope_dim);
  const int64_t row_bytes =
      (cache.latent_dim + cache.rope_dim) * static_cast<int64_t>(size_bytes(cache.dtype));
  float* staging = workspace_.get<float>(Scratch::kThread, pool_.thread_count() * kv.cols);
  for_rows(kv.rows, kv.cols, [&](int64_t t, int thread) {
    const int64_t slot = slots[static_cast<size_t>(t)];
    if (slot < 0) return;
    std::byte* row = static_cast<std::byte*>(cache.data) + slot * row_bytes;
    const bool coded = cache.dtype == DType::kF8E4M3;
    float* staged = staging + thread * kv.cols;
    isa_.store_latent(f32_row(kv, t), norm_weight, eps, cache.latent_dim,
                      rope_at(rope, positions[static_cast<size_t>(t)]),
                      coded ? static_cast<void*>(staged) : row, cache.dtype == DType::kBF16);
    if (coded) encode_f8_row(staged, cache.scale, row, kv.cols);
  });
}

void CpuKernels::absorb_query(const MatrixView& q, std::span<const MatrixPtr> w_uk_t, int nope_dim,
                              int rope_dim, const MatrixView& out) {
  const int64_t heads = static_cast<int64_t>(w_uk_t.size());
  const int64_t latent_dim = out.cols / heads - rope_dim;
  GemmArgs epilogue;
  epilogue.out = out.data;
  epilogue.out_stride = out.stride;
  multiply_heads(rows_of(q), q.rows, w_uk_t, nope_dim + rope_dim, latent_dim + rope_dim, epilogue);
  for_rows(q.rows, heads * rope_dim, [&](int64_t t, int) {
    for (int64_t h = 0; h < heads; ++h)
      isa_.convert(f32_row(q, t, h * (nope_dim + rope_dim) + nope_dim), false,
                   f32_row(out, t, h * (latent_dim + rope_dim) + latent_dim), false, 1.0f,
                   rope_dim);
  });
}

void CpuKernels::value_up(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                          const MatrixView& out) {
  if (w_uv.empty()) return;
  GemmArgs epilogue;
  epilogue.out = out.data;
  epilogue.out_stride = out.stride;
  epilogue.out_is_bf16 = is_bf16(out);
  multiply_heads(rows_of(in), in.rows, w_uv, w_uv[0]->n_in(), w_uv[0]->n_out(), epilogue);
}

std::unique_ptr<KernelSet> create_cpu_kernels(const CpuOptions& options) {
  FORESAIL_CHECK(options.dtype == DType::kF32 || options.dtype == DType::kBF16, "dtype {}",
                 dtype_name(options.dtype));
  FORESAIL_CHECK(options.pool != nullptr, "no thread pool");
  return std::make_unique<CpuKernels>(
      select_isa(options.isa), options.dtype, *options.pool,
      options.reference_attention ? create_ref_kernels(options.dtype) : nullptr);
}

}  // namespace foresail
