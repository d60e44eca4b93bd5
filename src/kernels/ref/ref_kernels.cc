#include "kernels/ref/ref_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/element.h"
#include "kernels/ref/ranked_tokens.h"

namespace foresail {
namespace {

constexpr double kNegInf = -std::numeric_limits<double>::infinity();

class RefMatrix final : public Matrix {
 public:
  explicit RefMatrix(const HostMatrix& w) : Matrix(w.n_out, w.n_in) {
    values_.resize(static_cast<size_t>(w.n_out * w.n_in));
    for (int64_t o = 0; o < w.n_out; ++o)
      for (int64_t i = 0; i < w.n_in; ++i)
        values_[static_cast<size_t>(o * w.n_in + i)] =
            load_element(w.data, w.dtype, w.transposed ? i * w.stride + o : o * w.stride + i);
  }
  uint64_t size_bytes() const override { return values_.size() * sizeof(float); }
  const float* row(int64_t o) const { return values_.data() + o * n_in(); }

 private:
  std::vector<float> values_;  // [n_out, n_in]
};

const RefMatrix& ref(const Matrix& m) {
  return static_cast<const RefMatrix&>(m);
}
const RefMatrix& ref(const MatrixPtr& m) {
  return static_cast<const RefMatrix&>(*m);
}

double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

// y = x[0, n)·row o of w, x read through `at(i)`.
template <typename At>
double dot(const RefMatrix& w, int64_t o, const At& at) {
  const float* row = w.row(o);
  double sum = 0.0;
  for (int64_t i = 0; i < w.n_in(); ++i) sum += static_cast<double>(at(i)) * row[i];
  return sum;
}

// Pair i of a rotated vector of r dims: elements (a, b).
std::pair<int, int> rope_pair(const RopeTable& rope, int i) {
  if (rope.layout == RopeLayout::kAdjacentPairs) return {2 * i, 2 * i + 1};
  return {i, i + rope.rope_dim / 2};
}

void rotate(float* x, const RopeTable& rope, int64_t position) {
  const int half = rope.rope_dim / 2;
  for (int i = 0; i < half; ++i) {
    const auto [ia, ib] = rope_pair(rope, i);
    const double c = rope.cos[position * half + i];
    const double s = rope.sin[position * half + i];
    const double a = x[ia];
    const double b = x[ib];
    x[ia] = static_cast<float>(a * c - b * s);
    x[ib] = static_cast<float>(a * s + b * c);
  }
}

double inverse_rms(const MatrixView& x, int64_t row, int64_t cols, double eps) {
  double sum = 0.0;
  for (int64_t i = 0; i < cols; ++i) {
    const double v = load_element(x, row, i);
    sum += v * v;
  }
  return 1.0 / std::sqrt(sum / static_cast<double>(cols) + eps);
}

// Softmax over scores in place; returns the log-sum-exp (-inf for none).
double softmax(std::vector<double>& scores) {
  double largest = kNegInf;
  for (double s : scores) largest = std::max(largest, s);
  if (scores.empty()) return kNegInf;
  double sum = 0.0;
  for (double& s : scores) {
    s = std::exp(s - largest);
    sum += s;
  }
  for (double& s : scores) s /= sum;
  return largest + std::log(sum);
}

class RefKernels final : public KernelSet {
 public:
  explicit RefKernels(DType act_dtype) : act_dtype_(act_dtype) {}
  std::string_view name() const override { return "ref"; }
  DType act_dtype() const override { return act_dtype_; }
  MatrixPtr pack(const HostMatrix& weight) override { return std::make_unique<RefMatrix>(weight); }

  void embed(std::span<const int32_t> ids, const MatrixView& table, float scale,
             const MatrixView& out) override {
    for (size_t t = 0; t < ids.size(); ++t)
      for (int64_t i = 0; i < out.cols; ++i)
        store_element(out, static_cast<int64_t>(t), i, scale * load_element(table, ids[t], i));
  }

  void rms_norm(const MatrixView& x, const float* weight, float eps,
                const MatrixView& out) override {
    for (int64_t t = 0; t < x.rows; ++t) {
      const double factor = inverse_rms(x, t, x.cols, eps);
      for (int64_t i = 0; i < x.cols; ++i)
        store_element(out, t, i, static_cast<float>(load_element(x, t, i) * factor * weight[i]));
    }
  }

  void linear(const MatrixView& x, const Matrix& weight, const float* bias, float scale,
              bool accumulate, const MatrixView& out) override {
    const RefMatrix& w = ref(weight);
    for (int64_t t = 0; t < x.rows; ++t)
      for (int64_t o = 0; o < w.n_out(); ++o) {
        double y = dot(w, o, [&](int64_t i) { return load_element(x, t, i); });
        if (bias != nullptr) y += bias[o];
        y *= scale;
        if (accumulate) y += load_element(out, t, o);
        store_element(out, t, o, static_cast<float>(y));
      }
  }

  void silu_mul(const MatrixView& gate_up, const MatrixView& out) override {
    for (int64_t t = 0; t < out.rows; ++t)
      for (int64_t i = 0; i < out.cols; ++i)
        store_element(out, t, i,
                      static_cast<float>(silu(load_element(gate_up, t, i)) *
                                         load_element(gate_up, t, out.cols + i)));
  }

  void convert(const MatrixView& in, const MatrixView& out) override {
    for (int64_t t = 0; t < in.rows; ++t)
      for (int64_t i = 0; i < in.cols; ++i) store_element(out, t, i, load_element(in, t, i));
  }

  void choose_tokens(const MatrixView& logits, std::span<const TokenDraw> draws,
                     const int32_t* token_map, bool marks, int32_t* tokens) override;

  void rotate_query(const MatrixView& q, int head_count, const RopeTable& rope,
                    std::span<const int32_t> positions, const float* row_scale) override {
    const int64_t head_dim = q.cols / head_count;
    for (int64_t t = 0; t < q.rows; ++t) {
      float* row = static_cast<float*>(q.data) + t * q.stride;
      for (int h = 0; h < head_count; ++h)
        rotate(row + (h + 1) * head_dim - rope.rope_dim, rope, positions[static_cast<size_t>(t)]);
      if (row_scale != nullptr)
        for (int64_t i = 0; i < q.cols; ++i) row[i] *= row_scale[t];
    }
  }

  void store_latent(const MatrixView& kv, const float* norm_weight, float eps,
                    const RopeTable& rope, std::span<const int32_t> positions,
                    std::span<const int32_t> slots, const LatentCache& cache) override {
    const int c = cache.latent_dim;
    const int64_t width = c + cache.rope_dim;
    std::vector<float> key(static_cast<size_t>(cache.rope_dim));
    for (int64_t t = 0; t < kv.rows; ++t) {
      const int64_t slot = slots[static_cast<size_t>(t)];
      if (slot < 0) continue;
      std::byte* row = static_cast<std::byte*>(cache.data) +
                       slot * width * static_cast<int64_t>(size_bytes(cache.dtype));
      const double factor = inverse_rms(kv, t, c, eps);
      for (int i = 0; i < c; ++i)
        store_latent_element(cache, row, i,
                             static_cast<float>(load_element(kv, t, i) * factor * norm_weight[i]));
      for (int i = 0; i < cache.rope_dim; ++i)
        key[static_cast<size_t>(i)] = load_element(kv, t, c + i);
      rotate(key.data(), rope, positions[static_cast<size_t>(t)]);
      for (int i = 0; i < cache.rope_dim; ++i)
        store_latent_element(cache, row, c + i, key[static_cast<size_t>(i)]);
    }
  }

  void absorb_query(const MatrixView& q, std::span<const MatrixPtr> w_uk_t, int nope_dim,
                    int rope_dim, const MatrixView& out) override {
    const int64_t heads = static_cast<int64_t>(w_uk_t.size());
    for (int64_t t = 0; t < q.rows; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const RefMatrix& w = ref(w_uk_t[static_cast<size_t>(h)]);
        const int64_t from = h * (nope_dim + rope_dim);
        const int64_t to = h * (w.n_out() + rope_dim);
        for (int64_t o = 0; o < w.n_out(); ++o)
          store_element(out, t, to + o, static_cast<float>(dot(w, o, [&](int64_t i) {
                          return load_element(q, t, from + i);
                        })));
        for (int i = 0; i < rope_dim; ++i)
          store_element(out, t, to + w.n_out() + i, load_element(q, t, from + nope_dim + i));
      }
  }

  void latent_attention(const MatrixView& q, int head_count, float softmax_scale,
                        std::span<const SequenceRows> sequences, const LatentCache& cache,
                        const MatrixView& out) override {
    const int c = cache.latent_dim;
    const int width = c + cache.rope_dim;
    std::vector<double> scores;
    std::vector<double> sum(static_cast<size_t>(c));
    for (const SequenceRows& seq : sequences) {
      if (seq.kv_end == 0) continue;
      for (int i = 0; i < seq.row_count; ++i)
        for (int h = 0; h < head_count; ++h) {
          const int64_t row = seq.row_begin + i;
          const int key_count = seq.kv_end - seq.row_count + 1 + i;
          scores.clear();
          for (int j = 0; j < key_count; ++j) {
            const std::byte* key = cache_row(cache, seq.page_table, j);
            double s = 0.0;
            for (int d = 0; d < width; ++d)
              s += static_cast<double>(load_element(q, row, h * width + d)) *
                   load_latent(cache, key, d);
            scores.push_back(s * softmax_scale);
          }
          softmax(scores);
          std::fill(sum.begin(), sum.end(), 0.0);
          for (int j = 0; j < key_count; ++j) {
            const std::byte* key = cache_row(cache, seq.page_table, j);
            for (int d = 0; d < c; ++d)
              sum[static_cast<size_t>(d)] +=
                  scores[static_cast<size_t>(j)] * load_latent(cache, key, d);
          }
          for (int d = 0; d < c; ++d)
            store_element(out, row, h * c + d, static_cast<float>(sum[static_cast<size_t>(d)]));
        }
    }
  }

  void value_up(const MatrixView& in, std::span<const MatrixPtr> w_uv,
                const MatrixView& out) override {
    for (int64_t t = 0; t < in.rows; ++t)
      for (size_t h = 0; h < w_uv.size(); ++h) {
        const RefMatrix& w = ref(w_uv[h]);
        const int64_t head = static_cast<int64_t>(h);
        for (int64_t o = 0; o < w.n_out(); ++o)
          store_element(out, t, head * w.n_out() + o, static_cast<float>(dot(w, o, [&](int64_t i) {
                          return load_element(in, t, head * w.n_in() + i);
                        })));
      }
  }

  void expand_latent(const SequenceRows& sequence, int64_t key_begin, const LatentCache& cache,
                     std::span<const MatrixPtr> w_uk, std::span<const MatrixPtr> w_uv,
                     const MatrixView& k_nope, const MatrixView& k_rope,
                     const MatrixView& value) override {
    const auto project = [&](const std::byte* latent, const RefMatrix& w, const MatrixView& to,
                             int64_t j, int64_t head) {
      for (int64_t o = 0; o < w.n_out(); ++o)
        store_element(to, j, head * w.n_out() + o, static_cast<float>(dot(w, o, [&](int64_t i) {
                        return load_latent(cache, latent, i);
                      })));
    };
    for (int64_t j = 0; j < k_rope.rows; ++j) {
      const std::byte* latent = cache_row(cache, sequence.page_table, key_begin + j);
      for (size_t h = 0; h < w_uk.size(); ++h) {
        project(latent, ref(w_uk[h]), k_nope, j, static_cast<int64_t>(h));
        project(latent, ref(w_uv[h]), value, j, static_cast<int64_t>(h));
      }
      for (int i = 0; i < cache.rope_dim; ++i)
        store_element(k_rope, j, i, load_latent(cache, latent, cache.latent_dim + i));
    }
  }

  void expanded_attention(const MatrixView& q, int head_count, float softmax_scale, bool causal,
                          const ExpandedKeys& keys, const MatrixView& out,
                          const MatrixView& lse) override {
    const int64_t r = keys.rope_dim;
    const int64_t n = q.cols / head_count - r;
    const int64_t v = out.cols / head_count;
    std::vector<double> scores;
    for (int64_t i = 0; i < q.rows; ++i)
      for (int64_t h = 0; h < head_count; ++h) {
        const int64_t visible =
            causal ? std::max<int64_t>(keys.key_count - q.rows + 1 + i, 0) : keys.key_count;
        scores.clear();
        for (int64_t j = 0; j < visible; ++j) {
          double s = 0.0;
          for (int64_t d = 0; d < n; ++d)
            s += static_cast<double>(load_element(q, i, h * (n + r) + d)) *
                 keys.k_nope[(j * head_count + h) * n + d];
          for (int64_t d = 0; d < r; ++d)
            s += static_cast<double>(load_element(q, i, h * (n + r) + n + d)) *
                 keys.k_rope[j * r + d];
          scores.push_back(s * softmax_scale);
        }
        store_element(lse, i, h, static_cast<float>(softmax(scores)));
        for (int64_t d = 0; d < v; ++d) {
          double sum = 0.0;
          for (int64_t j = 0; j < visible; ++j)
            sum += scores[static_cast<size_t>(j)] * keys.value[(j * head_count + h) * v + d];
          store_element(out, i, h * v + d, static_cast<float>(sum));
        }
      }
  }

  void merge_attention(const MatrixView& other, const MatrixView& other_lse, const MatrixView& out,
                       const MatrixView& lse) override {
    const int64_t v = out.cols / lse.cols;
    for (int64_t t = 0; t < out.rows; ++t)
      for (int64_t h = 0; h < lse.cols; ++h) {
        const double a = load_element(lse, t, h);
        const double b = load_element(other_lse, t, h);
        if (b == kNegInf) continue;
        const double total =
            a == kNegInf ? b : std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
        const double weight_a = std::exp(a - total);
        const double weight_b = std::exp(b - total);
        for (int64_t d = h * v; d < (h + 1) * v; ++d) {
          const double mine = a == kNegInf ? 0.0 : weight_a * load_element(out, t, d);
          store_element(out, t, d, static_cast<float>(mine + weight_b * load_element(other, t, d)));
        }
        store_element(lse, t, h, static_cast<float>(total));
      }
  }

  void route(const MatrixView& logits, const RouteParams& params, int32_t* ids,
             float* weights) override;

  void experts(const MatrixView& x, std::span<const ExpertWeights> experts, const int32_t* ids,
               const float* weights, int top_k, const MatrixView& out) override {
    std::vector<double> hidden;
    std::vector<int> order(static_cast<size_t>(top_k));
    for (int64_t t = 0; t < x.rows; ++t) {
      const int32_t* row_ids = ids + t * top_k;
      for (int j = 0; j < top_k; ++j) order[static_cast<size_t>(j)] = j;
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return row_ids[a] < row_ids[b]; });
      for (int j : order) {
        const ExpertWeights& expert = experts[static_cast<size_t>(row_ids[j])];
        const RefMatrix& gate_up = ref(*expert.gate_up);
        const RefMatrix& down = ref(*expert.down);
        const int64_t inner = down.n_in();
        const auto input = [&](int64_t i) { return load_element(x, t, i); };
        hidden.resize(static_cast<size_t>(inner));
        for (int64_t i = 0; i < inner; ++i)
          hidden[static_cast<size_t>(i)] =
              silu(dot(gate_up, i, input)) * dot(gate_up, inner + i, input);
        for (int64_t o = 0; o < down.n_out(); ++o) {
          const double y = dot(down, o, [&](int64_t i) { return hidden[static_cast<size_t>(i)]; });
          store_element(out, t, o,
                        static_cast<float>(load_element(out, t, o) + weights[t * top_k + j] * y));
        }
      }
    }
  }

 private:
  DType act_dtype_;
};

void RefKernels::choose_tokens(const MatrixView& logits, std::span<const TokenDraw> draws,
                               const int32_t* token_map, bool marks, int32_t* tokens) {
  for (size_t row = 0; row < draws.size(); ++row) {
    const std::span values(static_cast<const float*>(logits.data) + row * logits.stride,
                           static_cast<size_t>(logits.cols));
    TokenRace race(draws[row]);
    for (const int32_t i : ranked_drawable_tokens(values, draws[row]))
      race.enter(i, token_map == nullptr ? i : token_map[i], values[i]);
    const int32_t token = token_map == nullptr ? race.winner() : token_map[race.winner()];
    tokens[row] = marks && std::isnan(values[race.winner()]) ? ~token : token;
  }
}

// models.md §2.6 in float64. A NaN choice counts as -inf, so ids stay in range.
void RefKernels::route(const MatrixView& logits, const RouteParams& params, int32_t* ids,
                       float* weights) {
  const int expert_count = params.expert_count;
  const int group_size = expert_count / params.group_count;
  std::vector<double> score(static_cast<size_t>(expert_count));
  std::vector<double> choice(score.size());
  // Indices of the `count` largest, best first, ties to the lowest index.
  const auto top = [](const double* values, int n, int count) {
    std::vector<int> order(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return values[a] > values[b]; });
    order.resize(static_cast<size_t>(count));
    return order;
  };
  for (int64_t t = 0; t < logits.rows; ++t) {
    for (size_t e = 0; e < score.size(); ++e)
      score[e] = load_element(logits, t, static_cast<int64_t>(e));
    if (params.score == GateScore::kSoftmax) {
      softmax(score);
    } else {
      for (double& s : score) s = 1.0 / (1.0 + std::exp(-s));
    }
    for (size_t e = 0; e < score.size(); ++e) {
      choice[e] = score[e] + (params.bias != nullptr ? params.bias[e] : 0.0f);
      if (std::isnan(choice[e])) choice[e] = kNegInf;
    }
    if (params.group_score != GroupScore::kNone) {
      std::vector<double> group(static_cast<size_t>(params.group_count));
      for (int g = 0; g < params.group_count; ++g) {
        const double* member = choice.data() + g * group_size;
        const std::vector<int> best = top(member, group_size, std::min(2, group_size));
        double& total = group[static_cast<size_t>(g)];
        total = member[best[0]];
        if (params.group_score == GroupScore::kTopTwoSum && best.size() > 1)
          total += member[best[1]];
      }
      std::vector<bool> kept(group.size());
      for (int g : top(group.data(), params.group_count, params.top_groups))
        kept[static_cast<size_t>(g)] = true;
      for (int e = 0; e < expert_count; ++e)
        if (!kept[static_cast<size_t>(e / group_size)]) choice[static_cast<size_t>(e)] = kNegInf;
    }
    double sum = 0.0;
    const std::vector<int> best = top(choice.data(), expert_count, params.top_k);
    for (int e : best) sum += score[static_cast<size_t>(e)];
    for (int j = 0; j < params.top_k; ++j) {
      const int e = best[static_cast<size_t>(j)];
      double w = score[static_cast<size_t>(e)];
      if (params.normalize) w /= sum + 1e-20;
      ids[t * params.top_k + j] = e;
      weights[t * params.top_k + j] = static_cast<float>(w * params.scale);
    }
  }
}

}  // namespace

std::unique_ptr<KernelSet> create_ref_kernels(DType act_dtype) {
  FORESAIL_CHECK(act_dtype == DType::kF32 || act_dtype == DType::kBF16, "act_dtype {}",
                 dtype_name(act_dtype));
  return std::make_unique<RefKernels>(act_dtype);
}

}  // namespace foresail
