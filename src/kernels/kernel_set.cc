#include "kernels/kernel_set.h"

#include <cstring>

namespace foresail {
namespace {

std::byte* row_of(const MatrixView& matrix, int64_t row) {
  return static_cast<std::byte*>(matrix.data) +
         row * matrix.stride * static_cast<int64_t>(size_bytes(matrix.dtype));
}

}  // namespace

void KernelSet::gather_rows(const MatrixView& in, std::span<const int32_t> rows,
                            const MatrixView& out) {
  const size_t row_bytes = static_cast<size_t>(in.cols) * size_bytes(in.dtype);
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(row_of(out, static_cast<int64_t>(i)), row_of(in, rows[i]), row_bytes);
}

void KernelSet::store_rows(const MatrixView& rows, std::span<const int32_t> slots,
                           const LatentCache& cache) {
  const int64_t width = cache.latent_dim + cache.rope_dim;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    const MatrixView from = {row_of(rows, static_cast<int64_t>(i)), rows.dtype, 1, width, width};
    std::byte* to = static_cast<std::byte*>(cache.data) +
                    slots[i] * width * static_cast<int64_t>(size_bytes(cache.dtype));
    convert(from, {to, cache.dtype, 1, width, width});
  }
}

namespace {

// The rows that products read.
const MatrixView& normed_rows(KernelSet& kernels, const MatrixView& x, const RowNorm& norm) {
  if (norm.weight == nullptr) return x;
  kernels.rms_norm(x, norm.weight, norm.eps, norm.normed);
  return norm.normed;
}

}  // namespace

void KernelSet::project(const MatrixView& x, const RowNorm& norm,
                        std::span<const RowProduct> projections) {
  const MatrixView& rows = normed_rows(*this, x, norm);
  for (const RowProduct& projection : projections)
    linear(rows, *projection.weight, projection.bias, 1.0f, false, projection.out);
}

void KernelSet::latent_inputs(const MatrixView& q, const MatrixView& kv, const LatentInputs& inputs,
                              const LatentCache& cache, const MatrixView& out) {
  rotate_query(q, inputs.head_count, inputs.rope, inputs.positions, inputs.row_scale);
  store_latent(kv, inputs.norm_weight, inputs.norm_eps, inputs.rope, inputs.positions, inputs.slots,
               cache);
  absorb_query(q, inputs.w_uk_t, inputs.nope_dim, inputs.rope.rope_dim, out);
}

void KernelSet::project_values(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                               const MatrixView& values, float scale, const RowProduct& output) {
  value_up(in, w_uv, values);
  linear(values, *output.weight, output.bias, scale, true, output.out);
}

void KernelSet::gated_mlp(const MatrixView& x, const RowNorm& norm, const ExpertWeights& weights,
                          float scale, const GatedScratch& scratch, const MatrixView& out) {
  linear(normed_rows(*this, x, norm), *weights.gate_up, nullptr, 1.0f, false, scratch.gate_up);
  silu_mul(scratch.gate_up, scratch.inner);
  linear(scratch.inner, *weights.down, nullptr, scale, true, out);
}

void KernelSet::mix_experts(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                            const MixtureScratch& scratch, const MatrixView& out) {
  const MatrixView& rows = normed_rows(*this, x, norm);
  linear(rows, *mixture.router, nullptr, 1.0f, false, scratch.logits);
  route(scratch.logits, mixture.route, scratch.ids, scratch.weights);
  experts(rows, mixture.experts, scratch.ids, scratch.weights, mixture.route.top_k, out);
  if (mixture.shared.gate_up != nullptr)
    gated_mlp(rows, {}, mixture.shared, 1.0f, scratch.shared, out);
}

}  // namespace foresail
