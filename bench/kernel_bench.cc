// kernel_bench [--isa NAME] [--dtype f32|bf16] [--threads N] [--filter TEXT] [--clock wall|cpu]
// One row per kernel and shape of the mla-mid model: time, rate, share of what the machine can do.
// Times are minima over many short runs: on a shared machine the fastest run is the undisturbed
// one.
// --clock cpu counts processor time instead: with one thread, other processes do not show.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/cpu_probe.h"
#include "tensor/buffer.h"
#include "tensor/float_formats.h"

namespace foresail {
namespace {

clockid_t g_clock = CLOCK_MONOTONIC;  // set once by main

double now_s() {
  timespec t{};
  clock_gettime(g_clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// mla-mid (hidden 2048, 16 heads, q_lora 768, latent 512, nope 128, rope 64, value 128).
constexpr int64_t kHidden = 2048;
constexpr int kHeads = 16;
constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kNope = 128;
constexpr int kValue = 128;
constexpr int64_t kExpertInner = 1408;
constexpr int kExperts = 32;
constexpr int kTopK = 6;

// A matrix with its own storage, filled with small random numbers.
struct Tensor {
  Tensor(DType dtype, int64_t rows, int64_t cols)
      : buffer(static_cast<size_t>(rows * cols) * size_bytes(dtype)),
        view{buffer.data(), dtype, rows, cols, cols} {
    uint32_t state = 12345;
    for (int64_t i = 0; i < rows * cols; ++i) {
      state = state * 1664525u + 1013904223u;
      const float x = (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 0.1f;
      if (dtype == DType::kBF16) {
        buffer.as<bf16>()[i] = to_bf16(x);
      } else {
        buffer.as<float>()[i] = x;
      }
    }
  }
  Buffer buffer;
  MatrixView view;
};

class Bench {
 public:
  Bench(std::string isa, DType dtype, int threads, std::string filter)
      : pool_(threads), filter_(std::move(filter)), dtype_(dtype) {
    set_ = create_cpu_kernels({dtype, isa, &pool_});
    read_ = probe_read_bandwidth(pool_).bytes_per_s;
    flops_ = probe_flops_per_s(pool_, isa, dtype == DType::kBF16);
    fmt::print("{} {}, {} threads; probes: read {:.1f} GB/s, multiply-add {:.0f} GFLOP/s\n\n",
               set_->name(), dtype_name(dtype), threads, read_ / 1e9, flops_ / 1e9);
    fmt::print("{:<22}{:<26}{:>11}{:>9}{:>8}{:>10}{:>8}\n", "op", "shape", "us", "GB/s", "% read",
               "GFLOP/s", "% peak");
  }

  void run_all() {
    for (int64_t rows : {1, 2, 4, 8}) dense("lm_head", 102400 / 4, kHidden, rows, 1);
    for (int64_t rows : {1, 2, 4, 8}) dense("dense down", kHidden, 8192, rows, 8);
    for (int64_t rows : {1, 4}) dense("q_b", kHeads * (kNope + kRope), 768, rows, 64);
    for (int64_t rows : {16, 64, 96, 512, 2048}) dense("dense gate_up", 16384, kHidden, rows, 1);
    dense("dense down", kHidden, 8192, 512, 1);
    dense("q_b", kHeads * (kNope + kRope), 768, 512, 1);
    dense("o", kHidden, kHeads * kValue, 512, 1);
    for (int64_t rows : {1, 4, 512}) moe(rows);
    for (int rows : {1, 2, 4, 8})
      for (int keys : {512, 4096, 16384}) latent(rows, keys);
    latent(512, 512);
    for (int keys : {512, 4096}) expanded(512, keys, keys == 512);
    expanded(4096, 4096, true);
    heads(1);
    heads(512);
    small(512);
  }

 private:
  void row(const std::string& op, const std::string& shape, double bytes, double flop,
           const std::function<void()>& body) {
    if ((op + " " + shape).find(filter_) == std::string::npos) return;
    body();
    double best = 1e30;
    double total = 0.0;
    for (int i = 0; i < 400 && (total < 0.5 || i < 5); ++i) {
      const double start = now_s();
      body();
      const double seconds = now_s() - start;
      best = std::min(best, seconds);
      total += seconds;
    }
    fmt::print("{:<22}{:<26}{:>11.1f}{:>9.1f}{:>8.1f}{:>10.1f}{:>8.1f}\n", op, shape, best * 1e6,
               bytes / best / 1e9, 100.0 * bytes / best / read_, flop / best / 1e9,
               100.0 * flop / best / flops_);
    std::fflush(stdout);
  }
  bool wanted(const std::string& op) const {
    return filter_.empty() || filter_.substr(0, op.size()) == op.substr(0, filter_.size());
  }

  // `copies` different weights in turn, so that a small one does not stay in the cache.
  void dense(const std::string& op, int64_t n_out, int64_t n_in, int64_t rows, int copies) {
    if (!wanted(op)) return;
    std::vector<MatrixPtr> weights;
    const Tensor source(DType::kBF16, n_out, n_in);
    for (int i = 0; i < copies; ++i)
      weights.push_back(set_->pack({source.view.data, DType::kBF16, n_out, n_in, n_in, false}));
    const Tensor x(dtype_, rows, n_in);
    const Tensor out(DType::kF32, rows, n_out);
    row(op, fmt::format("{} x [{}, {}]", rows, n_out, n_in),
        static_cast<double>(weights[0]->size_bytes()) * copies,
        2.0 * static_cast<double>(rows * n_out * n_in * copies), [&] {
          for (const MatrixPtr& w : weights)
            set_->linear(x.view, *w, nullptr, 1.0f, false, out.view);
        });
  }

  void moe(int64_t rows) {
    if (!wanted("experts")) return;
    std::vector<MatrixPtr> matrices;
    std::vector<ExpertWeights> experts;
    const Tensor gate_up(DType::kBF16, 2 * kExpertInner, kHidden);
    const Tensor down(DType::kBF16, kHidden, kExpertInner);
    for (int e = 0; e < kExperts; ++e) {
      matrices.push_back(
          set_->pack({gate_up.view.data, DType::kBF16, 2 * kExpertInner, kHidden, kHidden, false}));
      matrices.push_back(
          set_->pack({down.view.data, DType::kBF16, kHidden, kExpertInner, kExpertInner, false}));
      experts.push_back({matrices[matrices.size() - 2].get(), matrices.back().get()});
    }
    std::vector<int32_t> ids;
    std::vector<bool> used(kExperts);
    std::mt19937 random(1);
    for (int64_t t = 0; t < rows; ++t)
      for (int j = 0; j < kTopK; ++j) {
        ids.push_back(static_cast<int32_t>(
            (random() % 5 + static_cast<uint32_t>(t) * 3 + static_cast<uint32_t>(j) * 5) %
            kExperts));
        used[static_cast<size_t>(ids.back())] = true;
      }
    const std::vector<float> weights(ids.size(), 0.2f);
    const double distinct = static_cast<double>(std::count(used.begin(), used.end(), true));
    const Tensor x(dtype_, rows, kHidden);
    const Tensor out(DType::kF32, rows, kHidden);
    const double bytes = static_cast<double>(matrices[0]->size_bytes() + matrices[1]->size_bytes());
    row("experts", fmt::format("{} rows, {:.0f} distinct", rows, distinct), bytes * distinct,
        6.0 * static_cast<double>(rows * kTopK * kHidden * kExpertInner),
        [&] { set_->experts(x.view, experts, ids.data(), weights.data(), kTopK, out.view); });
  }

  void latent(int rows, int keys) {
    if (!wanted("latent_attention")) return;
    const Tensor cache(DType::kBF16, keys + 64, kLatent + kRope);
    std::vector<int32_t> table;
    for (int p = 0; p <= keys / 64; ++p) table.push_back(p);
    const SequenceRows sequence[] = {{0, rows, keys, table.data()}};
    const Tensor q(DType::kF32, rows, kHeads * (kLatent + kRope));
    const Tensor out(dtype_, rows, kHeads * kLatent);
    const double pairs = rows * (keys - (rows - 1) / 2.0);
    row("latent_attention", fmt::format("{} rows, {} keys", rows, keys),
        static_cast<double>(keys) * (kLatent + kRope) * 2,
        2.0 * pairs * kHeads * (2 * kLatent + kRope), [&] {
          set_->latent_attention(q.view, kHeads, 0.1f, sequence,
                                 {cache.view.data, DType::kBF16, 64, kLatent, kRope}, out.view);
        });
  }

  void expanded(int rows, int keys, bool causal) {
    if (!wanted("expanded_attention")) return;
    const Tensor q(DType::kF32, rows, kHeads * (kNope + kRope));
    const Tensor nope(DType::kF32, keys, kHeads * kNope);
    const Tensor rope(DType::kF32, keys, kRope);
    const Tensor value(DType::kF32, keys, kHeads * kValue);
    const Tensor out(DType::kF32, rows, kHeads * kValue);
    const Tensor lse(DType::kF32, rows, kHeads);
    const double pairs = causal ? rows * (keys - (rows - 1) / 2.0) : double{1} * rows * keys;
    row("expanded_attention",
        fmt::format("{} rows, {} keys{}", rows, keys, causal ? ", causal" : ""), 0.0,
        2.0 * pairs * kHeads * (kNope + kRope + kValue), [&] {
          set_->expanded_attention(q.view, kHeads, 0.1f, causal,
                                   {nope.buffer.as<float>(), rope.buffer.as<float>(),
                                    value.buffer.as<float>(), keys, kRope},
                                   out.view, lse.view);
        });
  }

  void heads(int64_t rows) {
    if (!wanted("absorb_query") && !wanted("value_up") && !wanted("expand_latent")) return;
    std::vector<MatrixPtr> uk_t, uk, uv;
    const Tensor source(DType::kBF16, kNope, kLatent);
    for (int h = 0; h < kHeads; ++h) {
      uk_t.push_back(set_->pack({source.view.data, DType::kBF16, kLatent, kNope, kLatent, true}));
      uk.push_back(set_->pack({source.view.data, DType::kBF16, kNope, kLatent, kLatent, false}));
      uv.push_back(set_->pack({source.view.data, DType::kBF16, kValue, kLatent, kLatent, false}));
    }
    const Tensor q(DType::kF32, rows, kHeads * (kNope + kRope));
    const Tensor absorbed(DType::kF32, rows, kHeads * (kLatent + kRope));
    const Tensor latent(dtype_, rows, kHeads * kLatent);
    const Tensor value(dtype_, rows, kHeads * kValue);
    const double bytes = 2.0 * kHeads * kNope * kLatent;
    const double flop = static_cast<double>(rows) * bytes;
    row("absorb_query", fmt::format("{} rows", rows), bytes, flop,
        [&] { set_->absorb_query(q.view, uk_t, kNope, kRope, absorbed.view); });
    row("value_up", fmt::format("{} rows", rows), bytes, flop,
        [&] { set_->value_up(latent.view, uv, value.view); });
    const Tensor cache(DType::kBF16, rows + 64, kLatent + kRope);
    std::vector<int32_t> table;
    for (int p = 0; p <= rows / 64; ++p) table.push_back(p);
    const Tensor k_nope(DType::kF32, rows, kHeads * kNope);
    const Tensor k_rope(DType::kF32, rows, kRope);
    const Tensor v(DType::kF32, rows, kHeads * kValue);
    row("expand_latent", fmt::format("{} rows", rows), 2.0 * bytes, 2.0 * flop, [&] {
      set_->expand_latent({0, 1, static_cast<int32_t>(rows), table.data()}, 0,
                          {cache.view.data, DType::kBF16, 64, kLatent, kRope}, uk, uv, k_nope.view,
                          k_rope.view, v.view);
    });
  }

  void small(int64_t rows) {
    if (!wanted("rms_norm") && !wanted("silu_mul") && !wanted("route")) return;
    const Tensor x(DType::kF32, rows, kHidden);
    const Tensor y(dtype_, rows, kHidden);
    row("rms_norm", fmt::format("{} x {}", rows, kHidden), static_cast<double>(rows) * kHidden * 6,
        0.0, [&] { set_->rms_norm(x.view, x.buffer.as<float>(), 1e-6f, y.view); });
    const Tensor gate_up(DType::kF32, rows, 2 * kHidden);
    row("silu_mul", fmt::format("{} x {}", rows, kHidden), static_cast<double>(rows) * kHidden * 10,
        0.0, [&] { set_->silu_mul(gate_up.view, y.view); });
    const Tensor logits(DType::kF32, rows, 256);
    std::vector<int32_t> ids(static_cast<size_t>(rows * 8));
    std::vector<float> weights(ids.size());
    const RouteParams params{GateScore::kSigmoid, GroupScore::kTopTwoSum, 256, 8, 8, 4, true, 2.5f,
                             x.buffer.as<float>()};
    row("route", fmt::format("{} x 256, top 8", rows), 0.0, 0.0,
        [&] { set_->route(logits.view, params, ids.data(), weights.data()); });
  }

  ThreadPool pool_;
  std::string filter_;
  DType dtype_;
  std::unique_ptr<KernelSet> set_;
  double read_ = 0.0;
  double flops_ = 0.0;
};

}  // namespace
}  // namespace foresail

int main(int argc, char** argv) {
  std::string isa = "auto";
  std::string filter;
  foresail::DType dtype = foresail::DType::kBF16;
  int threads = 2;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--isa") isa = value;
    if (flag == "--dtype") dtype = value == "f32" ? foresail::DType::kF32 : foresail::DType::kBF16;
    if (flag == "--threads") threads = std::stoi(value);
    if (flag == "--filter") filter = value;
    if (flag == "--clock" && value == "cpu") foresail::g_clock = CLOCK_PROCESS_CPUTIME_ID;
  }
  try {
    foresail::Bench(isa, dtype, threads, filter).run_all();
  } catch (const foresail::Error& error) {
    fmt::print(stderr, "kernel_bench: {}\n", error.what());
    return error.exit_status();
  }
  return 0;
}
