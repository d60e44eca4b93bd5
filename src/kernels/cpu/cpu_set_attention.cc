// Attention of the CPU set.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_set.h"
#include "kernels/element.h"

namespace foresail {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// Softmax over scores in place; returns the log-sum-exp.
float softmax(float* scores, int64_t n) {
  if (n == 0) return kNegInf;
  const float largest = *std::max_element(scores, scores + n);
  float sum = 0.0f;
  for (int64_t j = 0; j < n; ++j) {
    scores[j] = std::exp(scores[j] - largest);
    sum += scores[j];
  }
  for (int64_t j = 0; j < n; ++j) scores[j] /= sum;
  return largest + std::log(sum);
}

}  // namespace

void CpuKernels::latent_attention(const MatrixView& q, int head_count, float softmax_scale,
                                  std::span<const SequenceRows> sequences,
                                  const LatentCache& cache, const MatrixView& out) {
  const int c = cache.latent_dim;
  const int width = c + cache.rope_dim;
  for (const SequenceRows& seq : sequences) {
    if (seq.kv_end == 0) continue;
    const int64_t stride = seq.kv_end + c;
    float* scratch = workspace_.get<float>(Scratch::kScores, pool_.thread_count() * stride);
    pool_.parallel_for(int64_t{seq.row_count} * head_count, [&](int64_t task, int thread) {
      const int64_t i = task / head_count;
      const int64_t h = task % head_count;
      const int64_t key_count = seq.kv_end - seq.row_count + 1 + i;
      float* scores = scratch + thread * stride;
      float* sum = scores + seq.kv_end;
      const float* query =
          static_cast<const float*>(q.data) + (seq.row_begin + i) * q.stride + h * width;
      for (int64_t j = 0; j < key_count; ++j) {
        const std::byte* key = cache_row(cache, seq.page_table, j);
        float s = 0.0f;
        for (int d = 0; d < width; ++d) s += query[d] * load_element(key, cache.dtype, d);
        scores[j] = s * softmax_scale;
      }
      softmax(scores, key_count);
      std::fill_n(sum, c, 0.0f);
      for (int64_t j = 0; j < key_count; ++j) {
        const std::byte* key = cache_row(cache, seq.page_table, j);
        for (int d = 0; d < c; ++d) sum[d] += scores[j] * load_element(key, cache.dtype, d);
      }
      for (int d = 0; d < c; ++d) store_element(out, seq.row_begin + i, h * c + d, sum[d]);
    });
  }
}

void CpuKernels::expand_latent(const SequenceRows& sequence, int64_t key_begin,
                               const LatentCache& cache, std::span<const MatrixPtr> w_uk,
                               std::span<const MatrixPtr> w_uv, const MatrixView& k_nope,
                               const MatrixView& k_rope, const MatrixView& value) {
  const int64_t key_count = k_rope.rows;
  const bool bf16_cache = cache.dtype == DType::kBF16;
  int32_t* slots = workspace_.get<int32_t>(Scratch::kRowPointers, key_count);
  for (int64_t j = 0; j < key_count; ++j) {
    const int64_t key = key_begin + j;
    slots[j] = sequence.page_table[key / cache.page_size] * cache.page_size +
               static_cast<int32_t>(key % cache.page_size);
  }
  const RowsIn latents = {cache.data, cache.latent_dim + cache.rope_dim, slots, bf16_cache};
  GemmArgs epilogue;
  epilogue.out = k_nope.data;
  epilogue.out_stride = k_nope.stride;
  multiply_heads(latents, key_count, w_uk, 0, w_uk[0]->n_out(), epilogue);
  epilogue.out = value.data;
  epilogue.out_stride = value.stride;
  multiply_heads(latents, key_count, w_uv, 0, w_uv[0]->n_out(), epilogue);
  for_rows(key_count, cache.rope_dim, [&](int64_t j, int) {
    const std::byte* row = cache_row(cache, sequence.page_table, key_begin + j) +
                           cache.latent_dim * static_cast<int64_t>(size_bytes(cache.dtype));
    isa_.convert(row, bf16_cache, static_cast<float*>(k_rope.data) + j * k_rope.stride, false, 1.0f,
                 cache.rope_dim);
  });
}

void CpuKernels::expanded_attention(const MatrixView& q, int head_count, float softmax_scale,
                                    bool causal, const ExpandedKeys& keys, const MatrixView& out,
                                    const MatrixView& lse) {
  const int64_t r = keys.rope_dim;
  const int64_t n = q.cols / head_count - r;
  const int64_t v = out.cols / head_count;
  float* scratch = workspace_.get<float>(Scratch::kScores, pool_.thread_count() * keys.key_count);
  pool_.parallel_for(q.rows * head_count, [&](int64_t task, int thread) {
    const int64_t i = task / head_count;
    const int64_t h = task % head_count;
    const int64_t visible =
        causal ? std::max<int64_t>(keys.key_count - q.rows + 1 + i, 0) : keys.key_count;
    float* scores = scratch + thread * keys.key_count;
    const float* query = static_cast<const float*>(q.data) + i * q.stride + h * (n + r);
    for (int64_t j = 0; j < visible; ++j) {
      const float* nope = keys.k_nope + (j * head_count + h) * n;
      const float* rope = keys.k_rope + j * r;
      float s = 0.0f;
      for (int64_t d = 0; d < n; ++d) s += query[d] * nope[d];
      for (int64_t d = 0; d < r; ++d) s += query[n + d] * rope[d];
      scores[j] = s * softmax_scale;
    }
    store_element(lse, i, h, softmax(scores, visible));
    float* to = static_cast<float*>(out.data) + i * out.stride + h * v;
    std::fill_n(to, v, 0.0f);
    for (int64_t j = 0; j < visible; ++j) {
      const float* value = keys.value + (j * head_count + h) * v;
      for (int64_t d = 0; d < v; ++d) to[d] += scores[j] * value[d];
    }
  });
}

void CpuKernels::merge_attention(const MatrixView& other, const MatrixView& other_lse,
                                 const MatrixView& out, const MatrixView& lse) {
  const int64_t v = out.cols / lse.cols;
  for_rows(out.rows, out.cols, [&](int64_t t, int) {
    for (int64_t h = 0; h < lse.cols; ++h) {
      const float a = load_element(lse, t, h);
      const float b = load_element(other_lse, t, h);
      float* mine = static_cast<float*>(out.data) + t * out.stride + h * v;
      const float* theirs = static_cast<const float*>(other.data) + t * other.stride + h * v;
      if (b == kNegInf) continue;  // exact: nothing to add
      if (a == kNegInf) {
        std::copy_n(theirs, v, mine);
        store_element(lse, t, h, b);
        continue;
      }
      const float total = std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
      isa_.blend(mine, std::exp(a - total), theirs, std::exp(b - total), v);
      store_element(lse, t, h, total);
    }
  });
}

}  // namespace foresail
