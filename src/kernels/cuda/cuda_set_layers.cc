// The larger operations of the CUDA set: attention and experts.
#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "kernels/cuda/cuda_set.h"
#include "kernels/cuda/latent.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/sm90/mla_decode.h"

namespace foresail {
namespace {

// (row, choice) pairs worked on together: bounds the memory of a long prefill. Within so many, each
// expert's weights are read once.
constexpr int64_t kMostPairs = 8192;

size_t align_up(size_t size_bytes) {
  return (size_bytes + 255) / 256 * 256;
}

MatrixView row_range(const MatrixView& matrix, int64_t first, int64_t count) {
  const int64_t offset = first * matrix.stride * static_cast<int64_t>(size_bytes(matrix.dtype));
  return {static_cast<std::byte*>(matrix.data) + offset, matrix.dtype, count, matrix.cols,
          matrix.stride};
}

}  // namespace

void CudaKernels::absorb_query(const MatrixView& q, std::span<const MatrixPtr> w_uk_t, int nope_dim,
                               int rope_dim, const MatrixView& out) {
  const auto heads = static_cast<int>(w_uk_t.size());
  const int64_t latent_dim = out.cols / heads - rope_dim;
  cuda::gemm(stream(), {.weights = head_table(w_uk_t),
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
                        .out_group = latent_dim + rope_dim});
  const cuda::Rows from = {q.data, cuda::Element::kF32, q.rows, q.cols, q.stride};
  const cuda::Rows to = {out.data,
                         out.dtype == DType::kBF16 ? cuda::Element::kBF16 : cuda::Element::kF32,
                         out.rows, out.cols, out.stride};
  cuda::copy_head_columns(stream(), from, nope_dim, to, latent_dim, rope_dim, heads);
  check("absorb_query");
}

void CudaKernels::value_up(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                           const MatrixView& out) {
  cuda::gemm(stream(), {.weights = head_table(w_uv),
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
                        .out_group = w_uv[0]->n_out()});
  check("value_up");
}

bool CudaKernels::fits_tensor_cores(const LatentCache& cache, int head_count) const {
  return has_sm90_ && (cache.dtype == DType::kBF16 || cache.dtype == DType::kF8E4M3) &&
         cache.latent_dim == cuda::kMlaLatentDim && cache.rope_dim == cuda::kMlaRopeDim &&
         head_count <= 128 && (cache.page_size & (cache.page_size - 1)) == 0;
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
    params.launch = cuda::MlaLaunch::kPlain;  // everything runs on one stream
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

void CudaKernels::route(const MatrixView& logits, const RouteParams& params, int32_t* ids,
                        float* weights) {
  FORESAIL_CHECK(params.expert_count <= cuda::kMostExperts && params.top_k <= cuda::kMostChoices &&
                     params.group_count <= cuda::kMostGroups,
                 "{} experts, {} chosen, {} groups", params.expert_count, params.top_k,
                 params.group_count);
  cuda::route(
      stream(),
      {.logits = static_cast<const float*>(logits.data),
       .stride = logits.stride,
       .rows = logits.rows,
       .sigmoid = params.score == GateScore::kSigmoid,
       .group_rule = params.group_score == GroupScore::kMax         ? cuda::GroupRule::kMax
                     : params.group_score == GroupScore::kTopTwoSum ? cuda::GroupRule::kTopTwoSum
                                                                    : cuda::GroupRule::kNone,
       .experts = params.expert_count,
       .top_k = params.top_k,
       .groups = params.group_count,
       .top_groups = params.top_groups,
       .normalize = params.normalize,
       .scale = params.scale,
       .bias = params.bias,
       .ids = ids,
       .weights = weights});
  check("route");
}

void CudaKernels::experts(const MatrixView& x, std::span<const ExpertWeights> experts,
                          const int32_t* ids, const float* weights, int top_k,
                          const MatrixView& out) {
  std::vector<const void*> pointers;
  for (const ExpertWeights& expert : experts)
    pointers.push_back(CudaMatrix::data_of(*expert.gate_up));
  for (const ExpertWeights& expert : experts) pointers.push_back(CudaMatrix::data_of(*expert.down));
  const auto expert_count = static_cast<int64_t>(experts.size());
  const void* const* gate_up = table_of(experts.data(), std::move(pointers));
  const void* const* down = gate_up + expert_count;
  const int64_t inner = experts[0].down->n_in();
  const int64_t hidden = experts[0].down->n_out();
  const bool bf16 = x.dtype == DType::kBF16;

  const int64_t most_rows = std::max<int64_t>(kMostPairs / top_k, 1);
  for (int64_t first = 0; first < x.rows; first += most_rows) {
    const int64_t rows = std::min(most_rows, x.rows - first);
    const int64_t pairs = rows * top_k;
    const int tile_rows = cuda::expert_tile_rows(pairs, expert_count);
    const int64_t tiles = cuda::tile_limit(pairs, expert_count, tile_rows);
    const size_t row_bytes = align_up(pairs * sizeof(int32_t));
    auto* lists_data = static_cast<std::byte*>(
        scratch(Scratch::kPairs,
                2 * row_bytes + align_up(tiles * sizeof(cuda::ExpertTile)) + sizeof(int32_t)));
    cuda::PairLists lists;
    lists.pair_row = reinterpret_cast<int32_t*>(lists_data);
    lists.pair_place = reinterpret_cast<int32_t*>(lists_data + row_bytes);
    lists.tiles = reinterpret_cast<cuda::ExpertTile*>(lists_data + 2 * row_bytes);
    lists.tile_count = reinterpret_cast<int32_t*>(lists_data + 2 * row_bytes +
                                                  align_up(tiles * sizeof(cuda::ExpertTile)));
    auto* gate_up_out = static_cast<float*>(
        scratch(Scratch::kGateUp, static_cast<size_t>(pairs * 2 * inner) * sizeof(float)));
    void* inner_rows =
        scratch(Scratch::kHidden, static_cast<size_t>(pairs * inner) * (bf16 ? 2 : 4));
    auto* results = static_cast<float*>(
        scratch(Scratch::kResults, static_cast<size_t>(pairs * hidden) * sizeof(float)));
    const int32_t* part_ids = ids + first * top_k;

    cuda::order_pairs(stream(), part_ids, pairs, top_k, tile_rows, lists);
    cuda::GemmArgs args = {
        .weights = gate_up,
        .tiles = lists.tiles,
        .tile_count = lists.tile_count,
        .tile_limit = static_cast<int>(tiles),
        .tile_rows = tile_rows,
        .n_out = 2 * inner,
        .n_in = x.cols,
        .rows = pairs,
        .x = static_cast<const std::byte*>(x.data) + first * x.stride * (bf16 ? 2 : 4),
        .x_is_bf16 = bf16,
        .x_stride = x.stride,
        .x_rows = lists.pair_row,
        .out = gate_up_out,
        .out_stride = 2 * inner};
    cuda::gemm(stream(), args);
    cuda::silu_mul(
        stream(), {gate_up_out, cuda::Element::kF32, pairs, 2 * inner, 2 * inner},
        {inner_rows, bf16 ? cuda::Element::kBF16 : cuda::Element::kF32, pairs, inner, inner});
    args.weights = down;
    args.n_out = hidden;
    args.n_in = inner;
    args.x = inner_rows;
    args.x_stride = inner;
    args.x_rows = nullptr;
    args.out = results;
    args.out_stride = hidden;
    cuda::gemm(stream(), args);
    cuda::combine(stream(), results, lists.pair_place, part_ids, weights + first * top_k, top_k,
                  {static_cast<float*>(out.data) + first * out.stride, cuda::Element::kF32, rows,
                   hidden, out.stride});
  }
  check("experts");
}

}  // namespace foresail
