// The larger operations of the CUDA set: attention.
#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "kernels/cuda/attention_rates.h"
#include "kernels/cuda/cuda_set.h"
#include "kernels/cuda/latent.h"
#include "kernels/cuda/latent_inputs.h"
#include "kernels/cuda/sm90/mla_decode.h"
#include "kernels/cuda/sm90/wide_inputs.h"
#include "kernels/cuda/sm90/wide_product.h"

namespace foresail {
namespace {

// The product that absorbs a part of each head's query; `weights`: head_table().
cuda::GemmArgs absorbing(const MatrixView& q, const void* const* weights, int heads, int nope_dim,
                         int rope_dim, const MatrixView& out) {
  const int64_t latent_dim = out.cols / heads - rope_dim;
  return {.weights = weights,
          .groups = heads,
          .n_out = latent_dim,
          .n_in = nope_dim,
          .rows = q.rows,
          .x = q.data,
          .x_stride = q.stride,
          .x_group = nope_dim + rope_dim,
          .out = out.data,
          .out_is_bf16 = out.dtype == DType::kBF16,
          .out_stride = out.stride,
          .out_group = latent_dim + rope_dim};
}

// The product that takes each head's attended latents to its values.
cuda::GemmArgs raising(const MatrixView& in, const void* const* weights,
                       std::span<const MatrixPtr> w_uv, const MatrixView& out) {
  return {.weights = weights,
          .groups = static_cast<int>(w_uv.size()),
          .n_out = w_uv[0]->n_out(),
          .n_in = w_uv[0]->n_in(),
          .rows = in.rows,
          .x = in.data,
          .x_is_bf16 = in.dtype == DType::kBF16,
          .x_stride = in.stride,
          .x_group = w_uv[0]->n_in(),
          .out = out.data,
          .out_is_bf16 = out.dtype == DType::kBF16,
          .out_stride = out.stride,
          .out_group = w_uv[0]->n_out()};
}

}  // namespace

void CudaKernels::absorb_query(const MatrixView& q, std::span<const MatrixPtr> w_uk_t, int nope_dim,
                               int rope_dim, const MatrixView& out) {
  const auto heads = static_cast<int>(w_uk_t.size());
  multiply(absorbing(q, head_table(w_uk_t), heads, nope_dim, rope_dim, out));
  const int64_t latent_dim = out.cols / heads - rope_dim;
  const cuda::Rows from = {q.data, cuda::Element::kF32, q.rows, q.cols, q.stride};
  const cuda::Rows to = {out.data,
                         out.dtype == DType::kBF16 ? cuda::Element::kBF16 : cuda::Element::kF32,
                         out.rows, out.cols, out.stride};
  cuda::copy_head_columns(stream(), from, nope_dim, to, latent_dim, rope_dim, heads);
  check("absorb_query");
}

void CudaKernels::latent_inputs(const MatrixView& q, const MatrixView& kv,
                                const LatentInputs& inputs, const LatentCache& cache,
                                const MatrixView& out) {
  const int32_t* positions =
      pass_words(inputs.positions.data(), inputs_.positions, pass_.positions, "positions");
  cuda::LatentInputsArgs args = {
      .q = static_cast<const float*>(q.data),
      .q_stride = q.stride,
      .kv = static_cast<const float*>(kv.data),
      .kv_stride = kv.stride,
      .rows = q.rows,
      .heads = inputs.head_count,
      .nope_dim = inputs.nope_dim,
      .rope = rope_view(inputs.rope),
      .norm_weight = inputs.norm_weight,
      .norm_eps = inputs.norm_eps,
      .positions = positions,
      .slots = pass_words(inputs.slots.data(), inputs_.slots, pass_.slots, "slots"),
      .row_scale = scale_words(inputs.row_scale),
      .cache = cache_view(cache),
      .out = out.data,
      .out_is_bf16 = out.dtype == DType::kBF16,
      .out_stride = out.stride};
  if (cuda::fits_latent_inputs(args)) {
    args.weights = head_table(inputs.w_uk_t);
    cuda::latent_inputs(stream(), args);
  } else if (inputs.row_scale == nullptr) {
    const cuda::GemmArgs product = absorbing(q, head_table(inputs.w_uk_t), inputs.head_count,
                                             inputs.nope_dim, inputs.rope.rope_dim, out);
    const bool is_wide = goes_wide(product);
    if (is_wide && cuda::fits_wide_inputs(args, product)) {
      cuda::wide_inputs(stream(), args, product);
      return check("latent_inputs");
    }
    if (is_wide)
      args.split_out = cuda::split_out_of(
          product, scratch(Scratch::kWideRows, cuda::wide_scratch_bytes(product)));
    cuda::rotate_rows(stream(), args);
    if (is_wide)
      cuda::wide_product(stream(), product, args.split_out.to, true);
    else
      multiply(product);
  } else {
    return KernelSet::latent_inputs(q, kv, inputs, cache, out);
  }
  check("latent_inputs");
}

void CudaKernels::value_up(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                           const MatrixView& out) {
  multiply(raising(in, head_table(w_uv), w_uv, out));
  check("value_up");
}

void CudaKernels::project_values(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                                 const MatrixView& values, float scale, const RowProduct& output) {
  const cuda::GemmArgs up = raising(in, head_table(w_uv), w_uv, values);
  const cuda::GemmArgs down =
      linear_args(values, *output.weight, output.bias, scale, true, output.out);
  multiply_next(down, multiply_first(up, down, Scratch::kWideInner, nullptr));
  check("project_values");
}

bool CudaKernels::fits_tensor_cores(const LatentCache& cache, int head_count) const {
  return has_sm90_ && (cache.dtype == DType::kBF16 || cache.dtype == DType::kF8E4M3) &&
         cache.latent_dim == cuda::kMlaLatentDim && cache.rope_dim == cuda::kMlaRopeDim &&
         head_count <= 128 && (cache.page_size & (cache.page_size - 1)) == 0;
}

AttentionRates CudaKernels::attention_rates(const LatentCache& cache, int head_count) const {
  using cuda::AbsorbedKernel;
  return cuda::attention_rates(!fits_tensor_cores(cache, head_count) ? AbsorbedKernel::kGeneral
                               : deterministic_                      ? AbsorbedKernel::kFixedCut
                                                                     : AbsorbedKernel::kTensorCores,
                               multiprocessors_);
}

// The pass's runs; with a fixed cut in parts, since each query token has a workspace of its own.
std::vector<cuda::AttentionRun> CudaKernels::attention_calls(int head_count) const {
  if (!deterministic_) return pass_.runs;
  constexpr int kMostRows = 4096;
  std::vector<cuda::AttentionRun> calls;
  for (const cuda::AttentionRun& run : pass_.runs) {
    const int most = std::max(kMostRows / (run.q_len * head_count), 1);
    for (int first = 0; first < run.batch; first += most)
      calls.push_back({run.row_begin + first * run.q_len, run.q_len,
                       std::min(most, run.batch - first), run.first_piece + first});
  }
  return calls;
}

void CudaKernels::tensor_core_attention(const MatrixView& q, int head_count, float softmax_scale,
                                        const LatentCache& cache, const MatrixView& out) {
  FORESAIL_CHECK(cache.page_count > 0, "a cache of unknown size");
  // The kernel takes and gives bf16 rows without gaps.
  const int64_t out_cols = int64_t{head_count} * cuda::kMlaLatentDim;
  auto* queries = static_cast<std::byte*>(q.data);
  if (q.dtype != DType::kBF16 || q.stride != q.cols) {
    queries =
        static_cast<std::byte*>(scratch(Scratch::kQuery, static_cast<size_t>(q.rows * q.cols) * 2));
    convert(q, {queries, DType::kBF16, q.rows, q.cols, q.cols});
  }
  const bool in_place = out.dtype == DType::kBF16 && out.stride == out_cols;
  auto* results = static_cast<std::byte*>(
      in_place ? out.data
               : scratch(Scratch::kLatentOut, static_cast<size_t>(out.rows * out_cols) * 2));
  for (const cuda::AttentionRun& run : attention_calls(head_count)) {
    cuda::MlaDecodeParams params;
    params.batch = run.batch;
    params.q_len = run.q_len;
    params.num_heads = head_count;
    params.page_size = cache.page_size;
    params.num_pages = static_cast<int>(cache.page_count);
    params.max_pages = pass_.table_width;
    params.query = queries + run.row_begin * q.cols * 2;
    params.cache = cache.data;
    if (cache.dtype == DType::kF8E4M3) {
      params.cache_type = cuda::MlaCacheType::kE4m3;
      params.cache_scale = cache.scale;
    }
    params.block_table = word(pass_.tables);
    params.slots = word(pass_.piece_table) + run.first_piece;
    params.kv_end = word(pass_.piece_end) + run.first_piece;
    params.softmax_scale = softmax_scale;
    params.output = results + run.row_begin * out_cols * 2;
    params.fixed_cut = deterministic_;
    params.launch = cuda::MlaLaunch::kOverlapped;  // everything runs on one stream
    params.workspace_bytes = cuda::mla_decode_workspace_bytes(params);
    // A new buffer is zero; one call leaves it as the next one needs it.
    params.workspace = scratch(Scratch::kTensorCore, params.workspace_bytes);
    const cuda::MlaDecodeStatus status = cuda::mla_decode(stream(), params);
    if (status != cuda::MlaDecodeStatus::kOk) {
      check("latent_attention");
      throw_error(ErrorCode::kDevice, "CUDA: latent_attention: {}", cuda::to_string(status));
    }
    const int64_t run_rows = int64_t{run.batch} * run.q_len;
    if (!in_place)
      convert({params.output, DType::kBF16, run_rows, out_cols, out_cols},
              row_range(out, run.row_begin, run_rows));
  }
}

void CudaKernels::latent_attention(const MatrixView& q, int head_count, float softmax_scale,
                                   std::span<const SequenceRows> sequences,
                                   const LatentCache& cache, const MatrixView& out) {
  FORESAIL_CHECK(
      sequences.data() == inputs_.sequences.data() && cache.page_size == inputs_.page_size,
      "sequences or page size are not those of begin_pass");
  FORESAIL_CHECK(cache.latent_dim <= cuda::kMostLatentDim, "latent_dim {}", cache.latent_dim);
  if (fits_tensor_cores(cache, head_count))
    return tensor_core_attention(q, head_count, softmax_scale, cache, out);
  FORESAIL_CHECK(q.dtype == DType::kF32, "queries {}", dtype_name(q.dtype));
  cuda::LatentArgs args = {.q = static_cast<const float*>(q.data),
                           .q_stride = q.stride,
                           .rows = q.rows,
                           .heads = head_count,
                           .softmax_scale = softmax_scale,
                           .cache = cache_view(cache),
                           .visible = word(pass_.visible),
                           .table_row = word(pass_.table_row),
                           .tables = word(pass_.tables),
                           .table_width = pass_.table_width,
                           .most_visible = pass_.most_visible,
                           .out = out.data,
                           .out_is_bf16 = out.dtype == DType::kBF16,
                           .out_stride = out.stride};
  args.workspace = scratch(Scratch::kPartials, cuda::latent_workspace_bytes(args));
  cuda::latent_attention(stream(), args);
  check("latent_attention");
}

}  // namespace foresail
