// Time of expanded attention on Hopper beside the kernel for every shape and device, in turns, for
// heads of 128 + 64 and 128 numbers; with an error first, beside that kernel's products of two
// terms of every number.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <vector>

#include "kernels/cuda/expanded.h"
#include "kernels/cuda/sm90/expanded_attention.h"
#include "mla_reference.cuh"

using namespace foresail;

namespace {

constexpr int kNope = 128, kRope = 64, kValue = 128;
constexpr int kRounds = 7;
constexpr float kRoundMs = 5.0f;  // about so long is a round of calls

void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

struct Floats {
  float* data = nullptr;
  size_t count;
  explicit Floats(size_t count, uint32_t seed = 0) : count(count) {
    must(cudaMalloc(&data, count * sizeof(float)), "memory");
    if (seed != 0) bench::fill_normal<<<1024, 256>>>(data, count, seed, 1.0f);
  }
  Floats(const Floats&) = delete;
  ~Floats() { cudaFree(data); }
  std::vector<float> read() const {
    std::vector<float> host(count);
    must(cudaMemcpy(host.data(), data, count * sizeof(float), cudaMemcpyDeviceToHost), "copy");
    return host;
  }
};

struct Case {
  int rows, keys, heads;
  bool causal;
  double operations() const {
    const double pairs = causal ? rows * (double{1} * keys - rows) + 0.5 * rows * (rows + 1.0)
                                : double{1} * rows * keys;
    return 2.0 * pairs * heads * (kNope + kRope + kValue);
  }
};

class Bench {
 public:
  explicit Bench(const Case& what)
      : case_(what),
        q_(size_t(what.rows) * what.heads * (kNope + kRope), 1),
        nope_(size_t(what.keys) * what.heads * kNope, 2),
        rope_(size_t(what.keys) * kRope, 3),
        value_(size_t(what.keys) * what.heads * kValue, 4),
        out_(size_t(what.rows) * what.heads * kValue),
        lse_(size_t(what.rows) * what.heads) {
    args_ = {.q = q_.data,
             .q_stride = int64_t{what.heads} * (kNope + kRope),
             .rows = what.rows,
             .heads = what.heads,
             .nope_dim = kNope,
             .rope_dim = kRope,
             .value_dim = kValue,
             .softmax_scale = 1.0f / std::sqrt(float(kNope + kRope)),
             .causal = what.causal,
             .k_nope = nope_.data,
             .k_rope = rope_.data,
             .value = value_.data,
             .key_count = what.keys,
             .out = out_.data,
             .out_stride = int64_t{what.heads} * kValue,
             .lse = lse_.data,
             .lse_stride = what.heads};
    must(cudaMalloc(&scratch_, cuda::tiled_attention_bytes(args_)), "scratch");
    for (cudaEvent_t& event : events_) cudaEventCreate(&event);
  }
  Bench(const Bench&) = delete;
  ~Bench() {
    cudaFree(scratch_);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  void general(bool exact = false) {
    cuda::ExpandedArgs args = args_;
    args.exact = exact;
    cuda::expanded_attention(nullptr, args);
  }
  void tiled() { cuda::tiled_attention(nullptr, args_, scratch_); }

  // Root of the mean square of what one kernel's results differ from those of two terms by, over
  // theirs; or the greatest difference of a log-sum-exp, if that is more.
  double error(const std::function<void()>& call) {
    general(true);
    const std::vector<float> want = out_.read(), want_lse = lse_.read();
    cudaMemset(out_.data, 0xFF, out_.count * sizeof(float));  // NaN
    cudaMemset(lse_.data, 0xFF, lse_.count * sizeof(float));
    call();
    must(cudaDeviceSynchronize(), "attention");
    const std::vector<float> got = out_.read(), got_lse = lse_.read();
    double squares = 0.0, differences = 0.0, worst_lse = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
      squares += want[i] * double{want[i]};
      differences += (got[i] - want[i]) * double{got[i] - want[i]};
    }
    for (size_t i = 0; i < want_lse.size(); ++i)
      if (got_lse[i] != want_lse[i])  // both may be infinite
        worst_lse = std::max(worst_lse, std::abs(double{got_lse[i]} - want_lse[i]));
    const double error = std::max(std::sqrt(differences / std::max(squares, 1e-30)), worst_lse);
    return std::isfinite(differences + worst_lse) ? error : INFINITY;
  }

  float milliseconds(const std::function<void()>& call, int times) {
    cudaEventRecord(events_[0]);
    for (int i = 0; i < times; ++i) call();
    cudaEventRecord(events_[1]);
    must(cudaEventSynchronize(events_[1]), "timing");
    float taken = 0.0f;
    cudaEventElapsedTime(&taken, events_[0], events_[1]);
    return taken / times;
  }

  // Medians of the calls, in turns, and what the slowest round has over the fastest.
  void compare(const std::vector<std::function<void()>>& calls) {
    std::vector<std::vector<float>> taken(calls.size());
    std::vector<int> times;
    for (const auto& call : calls) {
      milliseconds(call, 2);
      times.push_back(std::clamp(static_cast<int>(kRoundMs / milliseconds(call, 2)), 2, 50));
    }
    for (int round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < calls.size(); ++i)
        taken[i].push_back(milliseconds(calls[i], times[i]) * 1e3f);
    std::printf("%4d %5d %5d %6s", case_.heads, case_.rows, case_.keys,
                case_.causal ? "causal" : "all");
    for (auto& of_call : taken) {
      std::sort(of_call.begin(), of_call.end());
      const float median = of_call[kRounds / 2];
      std::printf(" | %8.1f us [%5.1f] %5.0f", median, of_call.back() - of_call.front(),
                  case_.operations() / median * 1e-6);
    }
    std::printf("\n");
  }

 private:
  Case case_;
  Floats q_, nope_, rope_, value_, out_, lse_;
  cuda::ExpandedArgs args_;
  void* scratch_ = nullptr;
  std::array<cudaEvent_t, 2> events_{};
};

constexpr Case kChecks[] = {
    {1, 1, 1, true},        {1, 129, 3, true},      {64, 64, 16, true},
    {65, 65, 2, true},      {130, 300, 5, true},    {200, 100, 2, true},
    {257, 1000, 16, false}, {640, 640, 128, true},  {1024, 1024, 16, true},
    {2048, 2048, 16, true}, {2000, 3000, 16, true}, {700, 2500, 128, false}};

}  // namespace

// --check: errors only.
int main(int argc, char** argv) {
  const bool check_only = argc > 1 && std::strcmp(argv[1], "--check") == 0;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a hang loses no line
  std::printf("error: general | tiled\n");
  bool fine = true;
  for (const Case& what : kChecks) {
    Bench bench(what);
    const double general = bench.error([&] { bench.general(); });
    const double tiled = bench.error([&] { bench.tiled(); });
    fine = fine && tiled < std::max(2.0 * general, 1e-3);
    std::printf("%4d %5d %5d %6s | %.2e | %.2e\n", what.heads, what.rows, what.keys,
                what.causal ? "causal" : "all", general, tiled);
  }
  if (check_only) return fine ? 0 : 1;
  std::printf("heads, rows, keys | median [spread], TFLOP/s: general | tiled\n");
  for (const int heads : {16, 128})
    for (const auto& [rows, keys, causal] : {std::tuple{256, 256, true},
                                             {512, 512, true},
                                             {1024, 1024, true},
                                             {2048, 2048, true},
                                             {4096, 4096, true},
                                             {2048, 2048, false},
                                             {2048, 8192, false}}) {
      Bench bench({rows, keys, heads, causal});
      bench.compare({[&] { bench.general(); }, [&] { bench.tiled(); }});
    }
  return fine ? 0 : 1;
}
