// Operations on one row: norms, activations, rotations, conversions. A row's result depends on
// nothing but the row; sums run over lanes in a fixed order.
#pragma once

namespace foresail {
namespace {

float inverse_rms(const void* x, bool x_bf16, float eps, int64_t n) {
  V sum[2] = {zero(), zero()};  // two chains hide the latency of the add
  int which = 0;
  for (int64_t i = 0; i < n; i += kLanes, which ^= 1) {
    const V v = load_any(x, x_bf16, i, smaller(n - i, kLanes));
    sum[which] = fma(v, v, sum[which]);
  }
  const float mean = sum_lanes(add(sum[0], sum[1])) / static_cast<float>(n);
  return 1.0f / __builtin_sqrtf(mean + eps);
}

void rms_norm(const void* x, bool x_bf16, const float* weight, float eps, void* out, bool out_bf16,
              int64_t n) {
  const V factor = set1(inverse_rms(x, x_bf16, eps, n));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t m = smaller(n - i, kLanes);
    store_any(out, out_bf16, i,
              mul(mul(load_any(x, x_bf16, i, m), factor), load_any(weight, false, i, m)), m);
  }
}

void silu_mul(const float* gate, const float* up, void* out, bool out_bf16, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t m = smaller(n - i, kLanes);
    const V g = load_any(gate, false, i, m);
    store_any(out, out_bf16, i, mul(mul(g, sigmoid(g)), load_any(up, false, i, m)), m);
  }
}

void convert(const void* in, bool in_bf16, void* out, bool out_bf16, float scale, int64_t n) {
  const V factor = set1(scale);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t m = smaller(n - i, kLanes);
    store_any(out, out_bf16, i, mul(load_any(in, in_bf16, i, m), factor), m);
  }
}

// x -> out, which may be the same. Pairs (2i, 2i+1), or (i, i + r/2).
void rotate(const float* x, const RopeArgs& rope, float* out) {
  const int half = rope.rope_dim / 2;
  const int distance = rope.half_split ? half : 1;
  const int step = rope.half_split ? 1 : 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i * step];
    const float b = x[i * step + distance];
    out[i * step] = a * rope.cos[i] - b * rope.sin[i];
    out[i * step + distance] = a * rope.sin[i] + b * rope.cos[i];
  }
}

void rotate_heads(float* x, int head_count, int64_t head_dim, const RopeArgs& rope, float scale) {
  for (int h = 0; h < head_count; ++h) {
    float* tail = x + (h + 1) * head_dim - rope.rope_dim;
    rotate(tail, rope, tail);
  }
  if (scale != 1.0f) convert(x, false, x, false, scale, head_count * head_dim);
}

void store_latent(const float* kv, const float* norm_weight, float eps, int64_t latent_dim,
                  const RopeArgs& rope, void* out, bool out_bf16) {
  rms_norm(kv, false, norm_weight, eps, out, out_bf16, latent_dim);
  float rotated[kMaxRopeDim];
  rotate(kv + latent_dim, rope, rotated);
  for (int64_t i = 0; i < rope.rope_dim; i += kLanes) {
    const int64_t m = smaller(rope.rope_dim - i, kLanes);
    store_any(out, out_bf16, latent_dim + i, load_any(rotated, false, i, m), m);
  }
}

void blend(float* out, float weight_out, const float* other, float weight_other, int64_t n) {
  const V a = set1(weight_out);
  const V b = set1(weight_other);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t m = smaller(n - i, kLanes);
    const V sum = add(mul(load_any(out, false, i, m), a), mul(load_any(other, false, i, m), b));
    store_any(out, false, i, sum, m);
  }
}

void sigmoid_row(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t m = smaller(n - i, kLanes);
    store_any(x, false, i, sigmoid(load_any(x, false, i, m)), m);
  }
}

void softmax_row(float* x, int64_t n) {
  float largest = -__builtin_inff();
  for (int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  const V shift = set1(largest);
  float sum = 0.0f;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t m = smaller(n - i, kLanes);
    store_any(x, false, i, exp(sub(load_any(x, false, i, m), shift)), m);
  }
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  const V total = set1(sum);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t m = smaller(n - i, kLanes);
    store_any(x, false, i, div(load_any(x, false, i, m), total), m);
  }
}

}  // namespace
}  // namespace foresail
