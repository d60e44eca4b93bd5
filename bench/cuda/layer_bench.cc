// Time of the layers of a decode or verify pass on the GPU, and what each operation has of it: the
// pass is timed again without the operation, so what overlaps is counted once.
// Layers of DeepSeek-V2-Lite with random weights, the rows of one request or of as many. "apart":
// by the operations that the fused ones stand for.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "apps/flag_checks.h"
#include "apps/program.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernel_set.h"
#include "tensor/arena.h"
#include "tensor/buffer.h"

using namespace foresail;

namespace {

constexpr int64_t kHidden = 2048, kInner = 1408, kSharedInner = 2816;
constexpr int kHeads = 16, kNope = 128, kRope = 64, kValue = 128, kLatent = 512;
constexpr std::string_view kPrefill = "prefill";
constexpr int kExperts = 64, kChoices = 6, kPage = 64;

enum Operation {
  kProject,
  kLatentInputs,
  kAttention,
  kValueUp,
  kOutput,
  kMixture,
  kShared,  // of the mixture
  kOperations
};
constexpr const char* kNames[kOperations] = {
    "norm, query and latent",        "latent inputs", "attention", "value up", "output",
    "norm, router, experts, shared", "of it shared"};

struct Layer {
  MatrixPtr query, latent, output, router;
  std::vector<MatrixPtr> key_up, value_up, matrices;
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
  Buffer cache;
};

// What is timed.
struct Case {
  int rows = 1;
  int context = 1024;
  bool batch = false;         // every row is a request of its own; otherwise all are one's
  bool apart = false;         // by the operations that the fused ones stand for
  int skipped = kOperations;  // left out; kOperations: none
};

class LayerBench {
 public:
  LayerBench(int layers, int requests, int most_rows, int most_context, bool graphs)
      : set_(create_cuda_kernels({.graphs = graphs})), arena_(set_->memory()) {
    std::mt19937 random(1);
    // One random matrix serves all: what is measured is where bytes come from, not what they are.
    source_.resize(size_t{2 * kSharedInner} * kHidden + 4096);
    for (uint16_t& x : source_) {
      const float value = 0.04f * (static_cast<float>(random() & 0xFFFF) / 65536.0f - 0.5f);
      x = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    }
    request_pages_ = (most_context + most_rows + kPage - 1) / kPage;
    const int64_t pages = requests * request_pages_;
    for (int64_t page = 0; page < pages; ++page) table_.push_back(static_cast<int32_t>(page));
    constants_ = device(std::vector<float>(kHidden, 1.0f));
    angles_ = device(std::vector<float>(size_t(request_pages_) * kPage * kRope / 2, 0.7f));
    std::vector<float> state(size_t(most_rows) * kHidden);
    for (float& x : state) x = static_cast<float>(random() & 0xFFFF) / 32768.0f - 1.0f;
    state_ = device(state);
    for (int i = 0; i < layers; ++i) add_layer(pages);
  }

  // Runs a pass a few times.
  void run(const Case& what, int times) {
    case_ = what;
    positions_.clear();
    slots_.clear();
    sequences_.clear();
    for (int i = 0; i < what.rows; ++i) {
      const int request = what.batch ? i : 0;
      const auto first_page = static_cast<size_t>(request * request_pages_);
      positions_.push_back(what.context + (what.batch ? 0 : i));
      slots_.push_back(static_cast<int32_t>(first_page * kPage) + positions_.back());
      if (what.batch) sequences_.push_back({i, 1, what.context + 1, table_.data() + first_page});
    }
    if (!what.batch) sequences_.push_back({0, what.rows, what.context + what.rows, table_.data()});
    ++work_;
    for (int i = 0; i < times; ++i) pass();
    set_->memory().wait();
  }

  // Seconds of a pass: the least of five means.
  double time(const Case& what) {
    run(what, 3);
    constexpr int kRuns = 30;
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kRuns; ++i) pass();
      set_->memory().wait();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      best = std::min(best, taken.count() / kRuns);
    }
    return best;
  }

 private:
  Buffer device(const std::vector<float>& values) {
    Buffer buffer(values.size() * sizeof(float), set_->memory());
    set_->memory().upload(buffer.data(), values.data(), values.size() * sizeof(float));
    return buffer;
  }
  MatrixPtr pack(int64_t n_out, int64_t n_in) {
    // From another place every time, so that experts and layers differ.
    offset_ = (offset_ + 37) % 4096;
    return set_->pack({source_.data() + offset_, DType::kBF16, n_out, n_in, n_in});
  }
  ExpertWeights add_expert(Layer& layer, int64_t inner) {
    layer.matrices.push_back(pack(2 * inner, kHidden));
    layer.matrices.push_back(pack(kHidden, inner));
    return {layer.matrices[layer.matrices.size() - 2].get(), layer.matrices.back().get()};
  }
  void add_layer(int64_t pages) {
    Layer layer;
    layer.query = pack(kHeads * (kNope + kRope), kHidden);
    layer.latent = pack(kLatent + kRope, kHidden);
    layer.output = pack(kHidden, kHeads * kValue);
    layer.router = pack(kExperts, kHidden);
    for (int head = 0; head < kHeads; ++head) {
      layer.key_up.push_back(pack(kLatent, kNope));
      layer.value_up.push_back(pack(kValue, kLatent));
    }
    for (int i = 0; i < kExperts; ++i) layer.experts.push_back(add_expert(layer, kInner));
    layer.shared = add_expert(layer, kSharedInner);
    layer.cache = Buffer(size_t(pages) * kPage * (kLatent + kRope) * 2, set_->memory());
    set_->memory().zero(layer.cache.data(), layer.cache.size_bytes());
    layers_.push_back(std::move(layer));
  }
  MatrixView scratch(int64_t cols, DType dtype = DType::kF32) {
    std::byte* data = arena_.allocate(static_cast<size_t>(case_.rows * cols) * size_bytes(dtype));
    return {data, dtype, case_.rows, cols, cols};
  }

  void pass() {
    arena_.reset();
    if (set_->begin_pass({.positions = positions_,
                          .slots = slots_,
                          .sequences = sequences_,
                          .page_size = kPage,
                          .work = work_}))
      return;
    const MatrixView h = scratch(kHidden);
    set_->convert({state_.data(), DType::kF32, case_.rows, kHidden, kHidden}, h);
    for (const Layer& layer : layers_) forward(layer, h);
    set_->end_pass();
  }
  void forward(const Layer& layer, const MatrixView& h) {
    Arena::Scope scope(arena_);
    const auto* weight = constants_.as<float>();
    const LatentCache cache = {.data = const_cast<std::byte*>(layer.cache.data()),
                               .dtype = DType::kBF16,
                               .page_size = kPage,
                               .latent_dim = kLatent,
                               .rope_dim = kRope,
                               .page_count = static_cast<int64_t>(table_.size())};
    const RowNorm norm = {weight, 1e-6f, scratch(kHidden)};
    const MatrixView q = scratch(kHeads * (kNope + kRope));
    const MatrixView kv = scratch(kLatent + kRope);
    const DType type = set_->latent_query_dtype(cache, kHeads);
    const MatrixView latent_query = scratch(kHeads * (kLatent + kRope), type);
    const MatrixView latent_out = scratch(kHeads * kLatent, type);
    const MatrixView attended = scratch(kHeads * kValue);
    const RowProduct projections[] = {{layer.query.get(), nullptr, q},
                                      {layer.latent.get(), nullptr, kv}};
    if (case_.skipped != kProject)
      case_.apart ? set_->KernelSet::project(h, norm, projections)
                  : set_->project(h, norm, projections);
    const LatentInputs inputs = {.head_count = kHeads,
                                 .nope_dim = kNope,
                                 .w_uk_t = layer.key_up,
                                 .norm_weight = weight,
                                 .norm_eps = 1e-6f,
                                 .rope = {angles_.as<float>(), angles_.as<float>(), kRope},
                                 .positions = positions_,
                                 .slots = slots_};
    if (case_.skipped != kLatentInputs)
      case_.apart ? set_->KernelSet::latent_inputs(q, kv, inputs, cache, latent_query)
                  : set_->latent_inputs(q, kv, inputs, cache, latent_query);
    if (case_.skipped != kAttention)
      set_->latent_attention(latent_query, kHeads, 0.07f, sequences_, cache, latent_out);
    if (case_.skipped != kValueUp) set_->value_up(latent_out, layer.value_up, attended);
    if (case_.skipped != kOutput) set_->linear(attended, *layer.output, nullptr, 1.0f, true, h);
    if (case_.skipped == kMixture) return;
    Mixture mixture{layer.router.get(), {}, layer.experts, {}};
    mixture.route.score = GateScore::kSoftmax;
    mixture.route.expert_count = kExperts;
    mixture.route.top_k = kChoices;
    if (case_.skipped != kShared) mixture.shared = layer.shared;
    MixtureScratch spare;
    spare.logits = scratch(kExperts);
    spare.ids = static_cast<int32_t*>(scratch(kChoices).data);
    spare.weights = static_cast<float*>(scratch(kChoices).data);
    spare.shared = {scratch(2 * kSharedInner), scratch(kSharedInner)};
    case_.apart ? set_->KernelSet::mix_experts(h, norm, mixture, spare, h)
                : set_->mix_experts(h, norm, mixture, spare, h);
  }

  std::unique_ptr<KernelSet> set_;
  Arena arena_;
  Case case_;
  std::vector<uint16_t> source_;
  size_t offset_ = 0;
  std::vector<Layer> layers_;
  Buffer constants_, angles_, state_;
  int64_t request_pages_ = 0;
  std::vector<int32_t> positions_, slots_;
  std::vector<int32_t> table_;  // request r has the pages from r * request_pages_ on
  std::vector<SequenceRows> sequences_;
  uint64_t work_ = 0;
};

// What a pass is longer by for each of its operations.
void print_parts(LayerBench& bench, int layers, const Case& what) {
  const auto layer_us = [&](const Case& part) { return bench.time(part) / layers * 1e6; };
  const double whole = layer_us(what);
  fmt::print("{} rows at {}: {:.2f} us; less without\n", what.rows, what.context, whole);
  for (int operation = 0; operation < kOperations; ++operation) {
    Case part = what;
    part.skipped = operation;
    fmt::print("  {:<32} {:6.2f}\n", kNames[operation], whole - layer_us(part));
  }
}

void time_prefill(int layers) {
  constexpr int kMostRows = 1024;
  LayerBench bench(layers, 1, kMostRows, 0, true);
  fmt::print("us a layer of {}, nothing cached\n", layers);
  for (const int rows : {16, 32, 33, 48, 64, 96, 128, 192, 256, 384, 512, kMostRows})
    fmt::print("{:>5} {:>8.1f}\n", rows, bench.time({.rows = rows, .context = 0}) / layers * 1e6);
  for (const int rows : {64, 256, 512}) print_parts(bench, layers, {.rows = rows, .context = 0});
}

void time_decode(int layers) {
  LayerBench bench(layers, 32, 32, 8192, true);
  const auto layer_us = [&](const Case& what) { return bench.time(what) / layers * 1e6; };
  fmt::print("us a layer of {}\n{:>5} {:>8} {:>9} {:>8} {:>8}\n", layers, "rows", "context",
             "requests", "apart", "fused");
  for (const int context : {1024, 8192})
    for (const bool batch : {false, true})
      for (const int rows : {1, 2, 4, 8, 16, 32})
        if (!batch || rows > 1)
          fmt::print("{:>5} {:>8} {:>9} {:>8.2f} {:>8.2f}\n", rows, context, batch ? rows : 1,
                     layer_us({rows, context, batch, true}), layer_us({rows, context, batch}));
  for (const Case& what : {Case{1, 1024}, Case{2, 1024}, Case{8, 1024, true}, Case{32, 8192, true}})
    print_parts(bench, layers, what);
}

struct Flags {
  int layers = 5;
  std::string passes;  // empty: decode and verify
};

void run(const Flags& flags) {
  if (flags.passes.empty()) return time_decode(flags.layers);
  if (flags.passes == kPrefill) return time_prefill(flags.layers);
  const int rows = *parse_number<int>(flags.passes);
  LayerBench(flags.layers, 1, rows, 1024, false).run({.rows = rows}, 2);
}

FlagCheck prefill_or_rows() {
  const FlagCheck rows = number_in(1, 8192);
  const auto complaint = [rows](const std::string& text) {
    if (text == kPrefill || rows.complaint(text).empty()) return std::string();
    return fmt::format("choose {}, or rows, {}, instead of \"{}\"", kPrefill, rows.range, text);
  };
  return {complaint, fmt::format("{}, or {}", kPrefill, rows.range)};
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return run_program(
      "layer_bench", "Time of the layers of a decode or verify pass on the GPU", argc, argv,
      [&](Command& command) {
        command.add_option("layers", flags.layers, "layers of DeepSeek-V2-Lite, random weights")
            ->capture_default_str()
            ->check(number_in(1, 1000));
        command
            .add_option("passes", flags.passes,
                        "prefill: rows of one request with nothing cached; a number: nothing is "
                        "timed, two passes of so many rows run kernel by kernel, for a profiler")
            ->check(prefill_or_rows());
        command.callback([&] { run(flags); });
      });
}
