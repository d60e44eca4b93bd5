#include "bench/kernel_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <set>

#include "tensor/buffer.h"
#include "tensor/float_formats.h"

namespace foresail {
namespace {

// mla-mid: hidden 2048, 16 heads, q_lora 768, 32 experts of which 6 are chosen.
constexpr int64_t kHidden = 2048;
constexpr int kHeads = 16;
constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kRow = kLatent + kRope;
constexpr int kNope = 128;
constexpr int kValue = 128;
constexpr int64_t kQueryRank = 768;
constexpr int64_t kQueryDim = kHeads * (kNope + kRope);
constexpr int64_t kExpertInner = 1408;
constexpr int64_t kDenseInner = 8192;
constexpr int64_t kVocab = 25600;  // a quarter, to keep the set-up short
constexpr int kExperts = 32;
constexpr int kTopK = 6;
constexpr int kPageSize = 64;
// Routing is timed with the 256 experts of DeepSeek-V3, where it costs something.
constexpr RouteParams kRoute{GateScore::kSigmoid, GroupScore::kTopTwoSum, 256, 8, 8, 4, true, 2.5f};

constexpr double kColdBytes = 64 << 20;  // larger than the part of a last-level cache we may have
constexpr int64_t kFewRows = 8;          // up to here a pass is bound by memory

// A matrix with its own storage, filled with small random numbers.
struct Tensor {
  Tensor(DType dtype, int64_t rows, int64_t cols)
      : buffer(static_cast<size_t>(rows * cols) * size_bytes(dtype)),
        view{buffer.data(), dtype, rows, cols, cols} {
    uint32_t state = 12345;
    for (int64_t i = 0; i < rows * cols; ++i) {
      state = state * 1664525u + 1013904223u;
      const float x = (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 0.1f;
      if (dtype == DType::kBF16)
        buffer.as<bf16>()[i] = to_bf16(x);
      else
        buffer.as<float>()[i] = x;
    }
  }
  Buffer buffer;
  MatrixView view;
};
using TensorPtr = std::shared_ptr<const Tensor>;
using Matrices = std::vector<MatrixPtr>;

TensorPtr tensor(DType dtype, int64_t rows, int64_t cols) {
  return std::make_shared<const Tensor>(dtype, rows, cols);
}

MatrixPtr packed(KernelSet& set, const Tensor& source) {
  return set.pack({source.view.data, source.view.dtype, source.view.rows, source.view.cols,
                   source.view.cols, false});
}

// One matrix a head and copy; each copy's matrices stand together.
std::vector<Matrices> packed_heads(KernelSet& set, int copies, int64_t n_out, int64_t n_in) {
  const Tensor source(DType::kBF16, n_out, n_in);
  std::vector<Matrices> result(static_cast<size_t>(copies));
  for (Matrices& heads : result)
    for (int h = 0; h < kHeads; ++h) heads.push_back(packed(set, source));
  return result;
}

int cold_copies(int64_t rows, double operand_bytes) {
  return rows > kFewRows ? 1 : std::max(1, static_cast<int>(kColdBytes / operand_bytes));
}

std::vector<int32_t> page_list(int64_t keys) {
  std::vector<int32_t> pages;
  for (int64_t key = 0; key < keys; key += kPageSize)
    pages.push_back(static_cast<int32_t>(key / kPageSize));
  return pages;
}

int64_t cache_rows(int64_t keys) {
  return (keys + kPageSize - 1) / kPageSize * kPageSize;
}

LatentCache cache_of(const Tensor& rows) {
  return {rows.view.data, rows.view.dtype, kPageSize, kLatent, kRope};
}

std::vector<int32_t> ascending(int64_t count) {
  std::vector<int32_t> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<int32_t>(i));
  return numbers;
}

// Half of the rows change, and all tell five log probabilities.
std::vector<DrawTerms> rows_with_terms(int64_t rows) {
  std::vector<DrawTerms> terms(static_cast<size_t>(rows), {.top_count = 5});
  for (size_t row = 0; row < terms.size(); row += 2) {
    terms[row].table_row = static_cast<int32_t>(row);
    terms[row].penalties = {1.1f, 0.5f, 0.5f};
  }
  return terms;
}

// Builds the list. Bytes and operations are doubles from the start: they are only ever divided.
class CaseList {
 public:
  explicit CaseList(DType dtype) : dtype_(dtype), act_bytes_(size_bytes(dtype)) {}

  void linear(const std::string& name, int64_t n_out, int64_t n_in, int64_t rows) {
    const double weight_bytes = act_bytes_ * n(n_out * n_in);
    const int copies = cold_copies(rows, weight_bytes);
    add("linear", fmt::format("{} {} x [{}, {}]", name, rows, n_out, n_in),
        weight_bytes + n(rows) * (act_bytes_ * n(n_in) + 4 * n(n_out)), 2 * n(rows * n_out * n_in),
        copies, [=, dtype = dtype_](KernelSet& set) -> std::function<void()> {
          const Tensor source(DType::kBF16, n_out, n_in);
          auto weights = std::make_shared<Matrices>();
          for (int i = 0; i < copies; ++i) weights->push_back(packed(set, source));
          return [&set, weights, x = tensor(dtype, rows, n_in),
                  out = tensor(DType::kF32, rows, n_out)] {
            for (const MatrixPtr& weight : *weights)
              set.linear(x->view, *weight, nullptr, 1.0f, false, out->view);
          };
        });
  }

  void experts(int64_t rows) {
    std::vector<int32_t> ids;
    std::mt19937 random(1);
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<int32_t> all = ascending(kExperts);
      std::shuffle(all.begin(), all.end(), random);
      ids.insert(ids.end(), all.begin(), all.begin() + kTopK);
    }
    const size_t distinct = std::set<int32_t>(ids.begin(), ids.end()).size();
    add("experts", fmt::format("{} rows, {} of {} experts", rows, distinct, kExperts),
        act_bytes_ * n(3 * kHidden * kExpertInner) * n(distinct) +
            n(rows * kHidden) * (act_bytes_ + 8),
        n(rows * kTopK) * n(6 * kHidden * kExpertInner), 1,
        [=, dtype = dtype_](KernelSet& set) -> std::function<void()> {
          const Tensor gate_up(DType::kBF16, 2 * kExpertInner, kHidden);
          const Tensor down(DType::kBF16, kHidden, kExpertInner);
          auto matrices = std::make_shared<Matrices>();
          std::vector<ExpertWeights> experts;
          for (int e = 0; e < kExperts; ++e) {
            matrices->push_back(packed(set, gate_up));
            matrices->push_back(packed(set, down));
            experts.push_back({matrices->end()[-2].get(), matrices->end()[-1].get()});
          }
          return [&set, matrices, experts, ids, weights = std::vector<float>(ids.size(), 0.2f),
                  x = tensor(dtype, rows, kHidden), out = tensor(DType::kF32, rows, kHidden)] {
            set.experts(x->view, experts, ids.data(), weights.data(), kTopK, out->view);
          };
        });
  }

  void latent_attention(int rows, int keys) {
    const double cache_bytes = 2.0 * n(keys) * kRow;
    const int copies = cold_copies(rows, cache_bytes);
    add("latent_attention", fmt::format("{} rows, {} keys", rows, keys),
        cache_bytes + n(rows * kHeads) * (4 * kRow + act_bytes_ * kLatent),
        2.0 * causal_pairs(rows, keys) * kHeads * (2 * kLatent + kRope), copies,
        [=, dtype = dtype_](KernelSet& set) -> std::function<void()> {
          const int64_t stride = cache_rows(keys) * kRow;
          return [&set, stride, copies, rows, keys, pages = page_list(keys),
                  caches = tensor(DType::kBF16, copies * cache_rows(keys), kRow),
                  q = tensor(DType::kF32, rows, kHeads * kRow),
                  out = tensor(dtype, rows, kHeads * kLatent)] {
            const SequenceRows sequence[] = {{0, rows, keys, pages.data()}};
            LatentCache cache = cache_of(*caches);
            for (int i = 0; i < copies; ++i) {
              cache.data = caches->buffer.as<bf16>() + i * stride;
              set.latent_attention(q->view, kHeads, 0.1f, sequence, cache, out->view);
            }
          };
        });
  }

  void expanded_attention(int rows, int keys, bool causal) {
    const double pairs = causal ? causal_pairs(rows, keys) : n(rows) * n(keys);
    add("expanded_attention",
        fmt::format("{} rows, {} keys{}", rows, keys, causal ? ", causal" : ""),
        4.0 * (n(keys) * (kHeads * (kNope + kValue) + kRope) +
               n(rows) * (kQueryDim + kHeads * (kValue + 1))),
        2.0 * pairs * kHeads * (kNope + kRope + kValue), 1,
        [=](KernelSet& set) -> std::function<void()> {
          return [&set, causal, keys, q = tensor(DType::kF32, rows, kQueryDim),
                  nope = tensor(DType::kF32, keys, kHeads * kNope),
                  rope = tensor(DType::kF32, keys, kRope),
                  value = tensor(DType::kF32, keys, kHeads * kValue),
                  out = tensor(DType::kF32, rows, kHeads * kValue),
                  lse = tensor(DType::kF32, rows, kHeads)] {
            set.expanded_attention(q->view, kHeads, 0.1f, causal,
                                   {nope->buffer.as<float>(), rope->buffer.as<float>(),
                                    value->buffer.as<float>(), keys, kRope},
                                   out->view, lse->view);
          };
        });
  }

  void merge_attention(int64_t rows) {
    const int64_t width = kHeads * kValue;
    add("merge_attention", fmt::format("{} rows", rows), 12.0 * n(rows) * n(width + kHeads),
        n(rows) * n(3 * width + 6 * kHeads), 1, [=](KernelSet& set) -> std::function<void()> {
          return [&set, other = tensor(DType::kF32, rows, width),
                  other_lse = tensor(DType::kF32, rows, kHeads),
                  out = tensor(DType::kF32, rows, width), lse = tensor(DType::kF32, rows, kHeads)] {
            set.merge_attention(other->view, other_lse->view, out->view, lse->view);
          };
        });
  }

  void absorb_query(int64_t rows) {
    const double weight_bytes = act_bytes_ * kHeads * kNope * kLatent;
    const int copies = cold_copies(rows, weight_bytes);
    add("absorb_query", fmt::format("{} rows", rows),
        weight_bytes + 4 * n(rows) * n(kQueryDim + kHeads * kRow),
        2 * n(rows) * kHeads * kNope * kLatent, copies,
        [=](KernelSet& set) -> std::function<void()> {
          auto w_uk_t =
              std::make_shared<std::vector<Matrices>>(packed_heads(set, copies, kLatent, kNope));
          return [&set, w_uk_t, q = tensor(DType::kF32, rows, kQueryDim),
                  out = tensor(DType::kF32, rows, kHeads * kRow)] {
            for (const Matrices& heads : *w_uk_t)
              set.absorb_query(q->view, heads, kNope, kRope, out->view);
          };
        });
  }

  void value_up(int64_t rows) {
    const double weight_bytes = act_bytes_ * kHeads * kValue * kLatent;
    const int copies = cold_copies(rows, weight_bytes);
    add("value_up", fmt::format("{} rows", rows),
        weight_bytes + act_bytes_ * n(rows) * kHeads * (kLatent + kValue),
        2 * n(rows) * kHeads * kValue * kLatent, copies,
        [=, dtype = dtype_](KernelSet& set) -> std::function<void()> {
          auto w_uv =
              std::make_shared<std::vector<Matrices>>(packed_heads(set, copies, kValue, kLatent));
          return [&set, w_uv, in = tensor(dtype, rows, kHeads * kLatent),
                  out = tensor(dtype, rows, kHeads * kValue)] {
            for (const Matrices& heads : *w_uv) set.value_up(in->view, heads, out->view);
          };
        });
  }

  void expand_latent(int keys) {
    const double elements = n(kHeads) * (kNope + kValue) * kLatent;
    add("expand_latent", fmt::format("{} keys", keys),
        act_bytes_ * elements + n(keys) * (2 * kRow + 4 * (kHeads * (kNope + kValue) + kRope)),
        2 * n(keys) * elements, 1, [=](KernelSet& set) -> std::function<void()> {
          auto w_uk = std::make_shared<std::vector<Matrices>>(packed_heads(set, 1, kNope, kLatent));
          auto w_uv =
              std::make_shared<std::vector<Matrices>>(packed_heads(set, 1, kValue, kLatent));
          return [&set, keys, w_uk, w_uv, pages = page_list(keys),
                  cache = tensor(DType::kBF16, cache_rows(keys), kRow),
                  k_nope = tensor(DType::kF32, keys, kHeads * kNope),
                  k_rope = tensor(DType::kF32, keys, kRope),
                  value = tensor(DType::kF32, keys, kHeads * kValue)] {
            set.expand_latent({0, 1, keys, pages.data()}, 0, cache_of(*cache), (*w_uk)[0],
                              (*w_uv)[0], k_nope->view, k_rope->view, value->view);
          };
        });
  }

  void embed(int64_t rows) {
    add("embed", fmt::format("{} x {}", rows, kHidden), 6.0 * n(rows * kHidden), n(rows * kHidden),
        1, [=](KernelSet& set) -> std::function<void()> {
          std::vector<int32_t> ids;
          std::mt19937 random(1);
          for (int64_t i = 0; i < rows; ++i) ids.push_back(static_cast<int32_t>(random() % kVocab));
          return [&set, ids, table = tensor(DType::kBF16, kVocab, kHidden),
                  out = tensor(DType::kF32, rows, kHidden)] {
            set.embed(ids, table->view, 1.0f, out->view);
          };
        });
  }

  void rms_norm(int64_t rows) {
    add("rms_norm", fmt::format("{} x {}", rows, kHidden), (4 + act_bytes_) * n(rows * kHidden),
        4.0 * n(rows * kHidden), 1, [=, dtype = dtype_](KernelSet& set) -> std::function<void()> {
          return [&set, x = tensor(DType::kF32, rows, kHidden),
                  weight = tensor(DType::kF32, 1, kHidden), out = tensor(dtype, rows, kHidden)] {
            set.rms_norm(x->view, weight->buffer.as<float>(), 1e-6f, out->view);
          };
        });
  }

  void silu_mul(int64_t rows) {
    add("silu_mul", fmt::format("{} x {}", rows, kDenseInner),
        (8 + act_bytes_) * n(rows * kDenseInner), 4.0 * n(rows * kDenseInner), 1,
        [=, dtype = dtype_](KernelSet& set) -> std::function<void()> {
          return
              [&set, gate_up = tensor(DType::kF32, rows, 2 * kDenseInner),
               out = tensor(dtype, rows, kDenseInner)] { set.silu_mul(gate_up->view, out->view); };
        });
  }

  void convert(int64_t rows) {
    add("convert", fmt::format("{} x {}, f32 to bf16", rows, kHidden), 6.0 * n(rows * kHidden), 0.0,
        1, [=](KernelSet& set) -> std::function<void()> {
          return [&set, in = tensor(DType::kF32, rows, kHidden),
                  out = tensor(DType::kBF16, rows, kHidden)] { set.convert(in->view, out->view); };
        });
  }

  void gather_rows(int64_t rows) {
    add("gather_rows", fmt::format("{} x {}, f32", rows, kHidden), 8.0 * n(rows * kHidden), 0.0, 1,
        [=](KernelSet& set) -> std::function<void()> {
          return [&set, in = tensor(DType::kF32, rows, kHidden),
                  out = tensor(DType::kF32, rows, kHidden),
                  wanted = ascending(rows)] { set.gather_rows(in->view, wanted, out->view); };
        });
  }

  void store_rows(int64_t rows) {
    add("store_rows", fmt::format("{} rows", rows), 6.0 * n(rows) * kRow, 0.0, 1,
        [=](KernelSet& set) -> std::function<void()> {
          return [&set, kv = tensor(DType::kF32, rows, kRow), slots = ascending(rows),
                  cache = tensor(DType::kBF16, cache_rows(rows), kRow)] {
            set.store_rows(kv->view, slots, cache_of(*cache));
          };
        });
  }

  void choose_tokens(int64_t rows) {
    add("choose_tokens", fmt::format("{} x {}", rows, kVocab), 4.0 * n(rows * kVocab),
        2.0 * n(rows * kVocab), 1, [=](KernelSet& set) -> std::function<void()> {
          return [&set, logits = tensor(DType::kF32, rows, kVocab),
                  draws = std::vector<TokenDraw>(static_cast<size_t>(rows), {1, 1.0, 7}),
                  tokens = std::vector<int32_t>(static_cast<size_t>(rows))]() mutable {
            set.choose_tokens(logits->view, draws, nullptr, true, tokens.data());
          };
        });
  }

  void choose_with_terms(int64_t rows) {
    add("choose_with_terms", fmt::format("{} x {}", rows, kVocab), 16.0 * n(rows * kVocab),
        10.0 * n(rows * kVocab), 1, [=](KernelSet& set) -> std::function<void()> {
          return [&set, logits = tensor(DType::kF32, rows, kVocab), fed = ascending(rows),
                  draws = std::vector<TokenDraw>(static_cast<size_t>(rows), {1, 1.0, 7}),
                  terms = rows_with_terms(rows),
                  table = std::vector<TokenTerms>(static_cast<size_t>(rows * kVocab)),
                  logprobs = std::vector<RowLogprobs>(static_cast<size_t>(rows)),
                  tokens = std::vector<int32_t>(static_cast<size_t>(rows))]() mutable {
            set.choose_with_terms(logits->view, draws, {terms, fed, table.data(), logprobs.data()},
                                  tokens.data());
          };
        });
  }

  // One row. Steep: as of a model, almost all of the mass on a few tokens.
  void choose_truncated(const std::string& name, const TokenDraw& draw, int64_t vocab, bool steep) {
    add("choose_tokens", fmt::format("{}, 1 x {}{}", name, vocab, steep ? ", steep" : ""),
        4.0 * n(vocab), 2.0 * n(vocab), 1, [=](KernelSet& set) -> std::function<void()> {
          auto logits = std::make_shared<Tensor>(DType::kF32, 1, vocab);
          std::mt19937 random(1);
          for (int64_t i = 0; i < vocab; ++i) {
            const double u = static_cast<double>(random()) * 0x1p-32;
            logits->buffer.as<float>()[i] =
                static_cast<float>(steep ? 20.0 * std::pow(u, 8.0) : 8.0 * u);
          }
          return [&set, logits, drawn = draw]() mutable {
            ++drawn.position;
            int32_t token = 0;
            set.choose_tokens(logits->view, {&drawn, 1}, nullptr, true, &token);
          };
        });
  }

  void accept_drafts(int64_t rows) {
    add("accept_drafts", fmt::format("one request, {} rows", rows), 12.0 * n(rows), 0.0, 1,
        [=](KernelSet& set) -> std::function<void()> {
          return [&set, fed = ascending(rows), pretended = std::vector<int32_t>{-1},
                  sequences = std::vector<SequenceRows>{{.row_count = static_cast<int32_t>(rows)}},
                  next = std::vector<int32_t>(static_cast<size_t>(rows)),
                  lag = std::vector<int32_t>(1)]() mutable {
            set.accept_drafts(fed.data(), fed, sequences, pretended, next.data(), lag.data());
          };
        });
  }

  void rotate_query(int64_t rows) {
    add("rotate_query", fmt::format("{} rows, {} heads", rows, kHeads),
        8.0 * n(rows) * kHeads * kRope, 3.0 * n(rows) * kHeads * kRope, 1,
        [=](KernelSet& set) -> std::function<void()> {
          return [&set, q = tensor(DType::kF32, rows, kQueryDim), angles = rope_rows(rows),
                  positions = ascending(rows)] {
            set.rotate_query(q->view, kHeads, rope_table(*angles), positions, nullptr);
          };
        });
  }

  void store_latent(int64_t rows) {
    add("store_latent", fmt::format("{} rows", rows), 6.0 * n(rows) * kRow,
        n(rows) * (4 * kLatent + 3 * kRope), 1, [=](KernelSet& set) -> std::function<void()> {
          return
              [&set, kv = tensor(DType::kF32, rows, kRow), weight = tensor(DType::kF32, 1, kLatent),
               angles = rope_rows(rows), positions = ascending(rows),
               cache = tensor(DType::kBF16, cache_rows(rows), kRow)] {
                set.store_latent(kv->view, weight->buffer.as<float>(), 1e-6f, rope_table(*angles),
                                 positions, positions, cache_of(*cache));
              };
        });
  }

  void route(int64_t rows) {
    add("route", fmt::format("{} x {}, top {}", rows, kRoute.expert_count, kRoute.top_k),
        n(rows) * (4 * kRoute.expert_count + 8 * kRoute.top_k), 5.0 * n(rows) * kRoute.expert_count,
        1, [=](KernelSet& set) -> std::function<void()> {
          const size_t chosen = static_cast<size_t>(rows * kRoute.top_k);
          return
              [&set, logits = tensor(DType::kF32, rows, kRoute.expert_count),
               bias = tensor(DType::kF32, 1, kRoute.expert_count),
               ids = std::vector<int32_t>(chosen), weights = std::vector<float>(chosen)]() mutable {
                RouteParams params = kRoute;
                params.bias = bias->buffer.as<float>();
                set.route(logits->view, params, ids.data(), weights.data());
              };
        });
  }

  std::vector<KernelCase> take() { return std::move(cases_); }

 private:
  static double n(int64_t count) { return static_cast<double>(count); }
  static double n(size_t count) { return static_cast<double>(count); }
  static double n(int count) { return count; }
  // Row i of `rows` sees keys - rows + 1 + i keys.
  static double causal_pairs(int rows, int keys) { return rows * (keys - (rows - 1) / 2.0); }

  static TensorPtr rope_rows(int64_t positions) {
    return tensor(DType::kF32, positions, kRope);  // cos in the first half of the rows' memory
  }
  static RopeTable rope_table(const Tensor& angles) {
    const auto* cosines = angles.buffer.as<float>();
    return {cosines, cosines + angles.view.rows * kRope / 2, kRope, RopeLayout::kAdjacentPairs};
  }

  void add(std::string op, std::string shape, double bytes, double operations, int calls,
           std::function<std::function<void()>(KernelSet&)> prepare) {
    cases_.push_back(
        {std::move(op), std::move(shape), bytes, operations, calls, std::move(prepare)});
  }

  DType dtype_;
  double act_bytes_;
  std::vector<KernelCase> cases_;
};

}  // namespace

std::vector<KernelCase> kernel_cases(DType dtype) {
  CaseList list(dtype);
  for (const int64_t rows : {1, 2, 4, 8}) list.linear("lm_head", kVocab, kHidden, rows);
  for (const int64_t rows : {1, 2, 4, 8}) list.linear("dense_down", kHidden, kDenseInner, rows);
  for (const int64_t rows : {1, 4, 512}) list.linear("q_b", kQueryDim, kQueryRank, rows);
  for (const int64_t rows : {16, 64, 96, 512, 2048})
    list.linear("dense_gate_up", 2 * kDenseInner, kHidden, rows);
  list.linear("dense_down", kHidden, kDenseInner, 512);
  list.linear("o", kHidden, kHeads * kValue, 512);
  for (const int64_t rows : {1, 2, 4, 8, 512}) list.experts(rows);
  for (const int rows : {1, 2, 4, 8})
    for (const int keys : {512, 4096, 16384}) list.latent_attention(rows, keys);
  list.latent_attention(512, 512);
  list.expanded_attention(512, 512, true);
  list.expanded_attention(512, 4096, false);
  list.expanded_attention(4096, 4096, true);
  list.merge_attention(512);
  for (const int64_t rows : {1, 4, 512}) list.absorb_query(rows);
  for (const int64_t rows : {1, 4, 512}) list.value_up(rows);
  list.expand_latent(512);
  for (const int64_t rows : {1, 512}) {
    list.embed(rows);
    list.rms_norm(rows);
    list.silu_mul(rows);
    list.convert(rows);
    list.gather_rows(rows);
    list.store_rows(rows);
    list.choose_tokens(rows);
    list.choose_with_terms(rows);
    list.accept_drafts(rows);
    list.rotate_query(rows);
    list.store_latent(rows);
    list.route(rows);
  }
  for (const auto& [vocab, steep] : {std::pair(131072, false), std::pair(8192, true)}) {
    list.choose_truncated("whole", {1, 1.25}, vocab, steep);
    list.choose_truncated("top-k 20", {1, 1.25, 0, 20}, vocab, steep);
    list.choose_truncated("top-p 0.95", {1, 1.25, 0, 0, 0.95f}, vocab, steep);
    list.choose_truncated("min-p 0.1", {1, 1.25, 0, 0, 1.0f, 0.1f}, vocab, steep);
  }
  return list.take();
}

}  // namespace foresail
