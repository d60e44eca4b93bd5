// Routing and the experts of the CPU set.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_set.h"
#include "kernels/element.h"

namespace foresail {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// (row, expert) pairs worked on together: bounds the hidden rows of a long prefill (4096 pairs x
// 2 x 1408 floats = 46 MB) while each expert's weights are still read once per call.
constexpr int64_t kBatchPairs = 4096;

// Writes the indices of the `count` largest values, best first, ties to the lowest index. Each one
// taken is marked in `taken`. -inf may be chosen, once everything else is gone.
void choose_top(const float* values, int n, int count, bool* taken, int32_t* out) {
  std::fill(taken, taken + n, false);
  for (int j = 0; j < count; ++j) {
    int best = -1;
    for (int i = 0; i < n; ++i)
      if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    taken[best] = true;
    out[j] = best;
  }
}

// Sets the choice of every expert outside the best groups to -inf.
void keep_best_groups(const RouteParams& params, float* choice, bool* taken, float* group_score,
                      int32_t* best_groups) {
  const int size = params.expert_count / params.group_count;
  for (int g = 0; g < params.group_count; ++g) {
    float first = kNegInf;
    float second = kNegInf;
    for (int i = 0; i < size; ++i) {
      const float c = choice[g * size + i];
      if (c > first) {
        second = first;
        first = c;
      } else if (c > second) {
        second = c;
      }
    }
    const bool both = params.group_score == GroupScore::kTopTwoSum && size > 1;
    group_score[g] = both ? first + second : first;
  }
  choose_top(group_score, params.group_count, params.top_groups, taken, best_groups);
  for (int g = 0; g < params.group_count; ++g)
    if (!taken[g]) std::fill_n(choice + g * size, size, kNegInf);
}

// body(matrix, begin, end) for what panels [from, to) of matrices in a row, `panels` each, are.
template <typename Body>
void for_matrices(int64_t panels, int64_t from, int64_t to, const Body& body) {
  while (from < to) {
    const int64_t matrix = from / panels;
    const int64_t end = std::min(to, (matrix + 1) * panels);
    body(matrix, from - matrix * panels, end - matrix * panels);
    from = end;
  }
}

}  // namespace

void CpuKernels::route(const MatrixView& logits, const RouteParams& params, int32_t* ids,
                       float* weights) {
  const int expert_count = params.expert_count;
  const int k = params.top_k;
  // Per thread: score[E], choice[E], group scores [E], best groups [E], taken [E].
  const int64_t stride = 5 * int64_t{expert_count};
  float* scratch = workspace_.get<float>(Scratch::kRoute, pool_.thread_count() * stride);
  for_rows(logits.rows, int64_t{expert_count} * (k + 8), [&](int64_t t, int thread) {
    float* score = scratch + thread * stride;
    float* choice = score + expert_count;
    float* group_score = choice + expert_count;
    int32_t* best_groups = reinterpret_cast<int32_t*>(group_score + expert_count);
    bool* taken = reinterpret_cast<bool*>(best_groups + expert_count);
    const float* row = static_cast<const float*>(logits.data) + t * logits.stride;
    std::copy_n(row, expert_count, score);
    params.score == GateScore::kSoftmax ? isa_.softmax(score, expert_count)
                                        : isa_.sigmoid(score, expert_count);
    for (int e = 0; e < expert_count; ++e) {
      choice[e] = score[e] + (params.bias != nullptr ? params.bias[e] : 0.0f);
      if (std::isnan(choice[e])) choice[e] = kNegInf;
    }
    if (params.group_score != GroupScore::kNone)
      keep_best_groups(params, choice, taken, group_score, best_groups);
    int32_t* row_ids = ids + t * k;
    choose_top(choice, expert_count, k, taken, row_ids);
    float sum = 0.0f;
    for (int j = 0; j < k; ++j) sum += score[row_ids[j]];
    for (int j = 0; j < k; ++j) {
      const float w = params.normalize ? score[row_ids[j]] / (sum + 1e-20f) : score[row_ids[j]];
      weights[t * k + j] = w * params.scale;
    }
  });
}

void CpuKernels::experts(const MatrixView& x, std::span<const ExpertWeights> experts,
                         const int32_t* ids, const float* weights, int top_k,
                         const MatrixView& out) {
  const int64_t pair_count = x.rows * top_k;
  if (pair_count == 0) return;
  const int64_t expert_count = static_cast<int64_t>(experts.size());
  // Group (row, choice) pairs by expert: counting sort, so rows stay in order inside an expert.
  int64_t* begin = workspace_.get<int64_t>(Scratch::kExpertOrder, 2 * expert_count + 2);
  int64_t* fill = begin + expert_count + 1;
  std::fill(begin, begin + expert_count + 1, 0);
  for (int64_t i = 0; i < pair_count; ++i) ++begin[ids[i] + 1];
  for (int64_t e = 0; e < expert_count; ++e) begin[e + 1] += begin[e];
  std::copy_n(begin, expert_count, fill);
  int32_t* rows = workspace_.get<int32_t>(Scratch::kExpertRows, pair_count);
  float* scale = workspace_.get<float>(Scratch::kExpertWeights, pair_count);
  for (int64_t i = 0; i < pair_count; ++i) {
    const int64_t at = fill[ids[i]]++;
    rows[at] = static_cast<int32_t>(i / top_k);
    scale[at] = weights[i];
  }
  // Distinct experts, ascending.
  int32_t* active = workspace_.get<int32_t>(Scratch::kExpertActive, expert_count);
  int64_t active_count = 0;
  int64_t most_rows = 0;
  for (int64_t e = 0; e < expert_count; ++e) {
    if (begin[e + 1] == begin[e]) continue;
    active[active_count++] = static_cast<int32_t>(e);
    most_rows = std::max(most_rows, begin[e + 1] - begin[e]);
  }
  const CpuMatrix& any_gate_up = cpu_matrix(*experts[static_cast<size_t>(active[0])].gate_up);
  const CpuMatrix& any_down = cpu_matrix(*experts[static_cast<size_t>(active[0])].down);
  const int64_t inner = any_down.n_in();
  const Products products = products_for(x.dtype == DType::kBF16);
  const int64_t in_bytes = packed_row_bytes(products, any_gate_up.n_in());
  const int64_t hidden_bytes = packed_row_bytes(products, inner);
  const int64_t most_pairs = std::min(pair_count, std::max(kBatchPairs, most_rows));
  std::byte* packed_x = workspace_.get<std::byte>(Scratch::kPackedRows, most_pairs * in_bytes);
  std::byte* packed_hidden =
      workspace_.get<std::byte>(Scratch::kExpertHidden, most_pairs * hidden_bytes);
  float* gate_up = workspace_.get<float>(Scratch::kExpertGateUp, most_pairs * 2 * inner);
  float* scratch = gemm_scratch(most_rows);
  // Few rows: what counts is that weights stream, so each expert gives rows of its own.
  const bool few = x.rows <= kStreamRows;
  float* parts =
      few ? workspace_.get<float>(Scratch::kExpertParts, most_pairs * out.cols) : nullptr;
  const auto gemm_args = [&](int64_t expert, const CpuMatrix& weight, int thread) {
    GemmArgs args;
    args.row_count = begin[expert + 1] - begin[expert];
    args.weight = weight.data();
    args.n_in = weight.n_in();
    args.n_out = weight.n_out();
    args.scratch = scratch + thread * most_rows * kMaxPanelLanes;
    return args;
  };

  // Batches of ascending experts; a batch's rows start at pair `base`.
  for (int64_t first = 0, last = 0; first < active_count; first = last) {
    const int64_t base = begin[active[first]];
    for (last = first + 1; last < active_count; ++last)
      if (begin[active[last] + 1] - base > kBatchPairs) break;
    const int64_t count = last - first;
    const int64_t batch_pairs = begin[active[last - 1] + 1] - base;
    pool_.parallel_for(count, [&](int64_t a, int) {
      const int64_t expert = active[first + a];
      pack_rows(products, {{x.data, x.stride, rows + begin[expert], x.dtype == DType::kBF16},
                           begin[expert + 1] - begin[expert],
                           x.cols,
                           packed_x + (begin[expert] - base) * in_bytes});
    });
    // Gate and up: any order, each (expert, panels) writes its own place.
    const auto gate_up_product = [&](int64_t a, int64_t panel_begin, int64_t panel_end,
                                     int thread) {
      const int64_t expert = active[first + a];
      const CpuMatrix& weight = cpu_matrix(*experts[static_cast<size_t>(expert)].gate_up);
      GemmArgs args = gemm_args(expert, weight, thread);
      args.packed_rows = packed_x + (begin[expert] - base) * in_bytes;
      args.panel_begin = panel_begin;
      args.panel_end = panel_end;
      args.out = gate_up + (begin[expert] - base) * 2 * inner;
      args.out_stride = 2 * inner;
      gemm(products, args);
    };
    const auto stream = [&](const CpuMatrix& any, const auto& product) {
      for_streams(
          count * any.panel_count(), any.panel_bytes(), [&](int64_t from, int64_t to, int thread) {
            for_matrices(any.panel_count(), from, to, [&](int64_t a, int64_t panel, int64_t end) {
              product(a, panel, end, thread);
            });
          });
    };
    const int64_t panels = any_gate_up.panel_count();
    if (few) {
      stream(any_gate_up, gate_up_product);
    } else {
      const int64_t groups = (panels + kTaskPanels - 1) / kTaskPanels;
      pool_.parallel_for(count * groups, [&](int64_t task, int thread) {
        const int64_t p = task % groups * kTaskPanels;
        gate_up_product(task / groups, p, std::min(p + kTaskPanels, panels), thread);
      });
    }
    for_rows(batch_pairs, inner * 8, [&](int64_t i, int) {
      float* row = gate_up + i * 2 * inner;
      isa_.silu_mul(row, row + inner, row, false, inner);
    });
    pool_.parallel_for(count, [&](int64_t a, int) {
      const int64_t expert = active[first + a];
      const int64_t from = begin[expert] - base;
      pack_rows(products, {{gate_up + from * 2 * inner, 2 * inner, nullptr, false},
                           begin[expert + 1] - begin[expert],
                           inner,
                           packed_hidden + from * hidden_bytes});
    });
    if (few) {
      const auto down_product = [&](int64_t a, int64_t panel_begin, int64_t panel_end, int thread) {
        const int64_t expert = active[first + a];
        GemmArgs args =
            gemm_args(expert, cpu_matrix(*experts[static_cast<size_t>(expert)].down), thread);
        args.packed_rows = packed_hidden + (begin[expert] - base) * hidden_bytes;
        args.panel_begin = panel_begin;
        args.panel_end = panel_end;
        args.out = parts + (begin[expert] - base) * out.cols;
        args.out_stride = out.cols;
        args.row_scale = scale + begin[expert];
        gemm(products, args);
      };
      stream(any_down, down_product);
      // Cut by columns: what a row gets is added in the order of experts.
      const int64_t cuts =
          std::min<int64_t>(pool_.thread_count(), batch_pairs * out.cols / kMinTaskWork + 1);
      pool_.parallel_for(cuts, [&](int64_t cut, int) {
        const int64_t col = out.cols * cut / cuts;
        const int64_t cols = out.cols * (cut + 1) / cuts - col;
        for (int64_t i = 0; i < batch_pairs; ++i)
          isa_.blend(static_cast<float*>(out.data) + rows[base + i] * out.stride + col, 1.0f,
                     parts + i * out.cols + col, 1.0f, cols);
      });
      continue;
    }
    // Down: a task owns some output columns and adds the experts to them in ascending order.
    const int64_t down_groups = (any_down.panel_count() + kTaskPanels - 1) / kTaskPanels;
    pool_.parallel_for(down_groups, [&](int64_t group, int thread) {
      for (int64_t a = first; a < last; ++a) {
        const int64_t expert = active[a];
        const CpuMatrix& weight = cpu_matrix(*experts[static_cast<size_t>(expert)].down);
        GemmArgs args = gemm_args(expert, weight, thread);
        args.packed_rows = packed_hidden + (begin[expert] - base) * hidden_bytes;
        args.panel_begin = group * kTaskPanels;
        args.panel_end = std::min(args.panel_begin + kTaskPanels, weight.panel_count());
        args.out = out.data;
        args.out_stride = out.stride;
        args.accumulate = true;
        args.row_scale = scale + begin[expert];
        args.out_index = rows + begin[expert];
        gemm(products, args);
      }
    });
  }
}

}  // namespace foresail
