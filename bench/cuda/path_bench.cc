// Time of one layer of a prefill pass on the GPU with either form of attention, and what the
// planner takes: a layer with experts of a preset's shape, random weights, a cache of random
// numbers; one request.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "apps/flag_checks.h"
#include "apps/program.h"
#include "attention/pass_planner.h"
#include "checkpoint/presets.h"
#include "kernels/cuda/cuda_kernels.h"
#include "model/decoder_layer.h"
#include "model/rope.h"
#include "runtime/latent_store.h"

using namespace foresail;

namespace {

constexpr int kPage = 64;
constexpr int kMostRows = 8192, kMostCached = 80000;
constexpr int64_t kMostSmallPairs = int64_t{2048} * 16384;

struct Options {
  ModelConfig config;
  bool deterministic = false, f32_cache = false, small = false;
};

class PathBench {
 public:
  explicit PathBench(const Options& options)
      : config_(options.config),
        set_(create_cuda_kernels({.deterministic = options.deterministic})),
        arena_(set_->memory()),
        rope_(config_, kMostRows + kMostCached, set_->memory()),
        store_(1, kPages + 1, kPage, static_cast<int>(config_.kv_lora_rank),
               static_cast<int>(config_.rope_dim), {options.f32_cache ? DType::kF32 : DType::kBF16},
               set_->memory()),
        source_(dummy_weights(config_, 1)),
        loader_(*source_, *set_),
        layer_(config_, loader_, "model.layers.0.", true) {
    for (int page = 0; page < kPages; ++page) table_.push_back(page + 1);
    const auto h = random(int64_t{kMostRows} * config_.hidden_dim);
    h_ = Buffer(h.size() * sizeof(float), set_->memory());
    set_->memory().upload(h_.data(), h.data(), h_.size_bytes());
    Buffer kept(h_.size_bytes(), set_->memory());
    state_ = std::move(kept);
    fill_cache();
  }

  // Seconds of a pass: the median of five.
  double time(AttentionPath form, int rows, int cached) {
    PassPlanner planner(attention(form), config_);
    std::vector<double> times;
    for (int run = 0; run < 6; ++run) {
      const auto start = std::chrono::steady_clock::now();
      pass(planner, rows, cached);
      set_->memory().wait();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (run > 0) times.push_back(taken.count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  // What the planner takes where it may choose.
  bool takes_expanded(int rows, int cached) {
    const PassRows request{table_.data(), {rows, cached + rows}};
    PassPlanner planner(attention({}), config_);
    return planner.prepare(PassKind::kPrefill, {&request, 1}).plan.path == AttentionPath::kExpanded;
  }

 private:
  static constexpr int kPages = (kMostRows + kMostCached) / kPage;

  AttentionConfig attention(std::optional<AttentionPath> form) {
    AttentionConfig attention;
    attention.page_size = kPage;
    attention.prefill_path = form;
    attention.rates =
        set_->attention_rates(store_.layers()[0], static_cast<int>(config_.head_count));
    return attention;
  }
  std::vector<float> random(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random_() & 0xFFFF) / 32768.0f - 1.0f;
    return values;
  }
  void fill_cache() {
    const LatentCache& cache = store_.layers()[0];
    const int64_t width = cache.latent_dim + cache.rope_dim;
    const std::vector<float> rows = random(int64_t{4096} * width);
    Buffer placed(rows.size() * sizeof(float), set_->memory());
    set_->memory().upload(placed.data(), rows.data(), placed.size_bytes());
    std::vector<int32_t> slots(4096);
    for (int first = 0; first < (kPages + 1) * kPage; first += 4096) {
      for (int i = 0; i < 4096; ++i) slots[i] = first + i < (kPages + 1) * kPage ? first + i : -1;
      set_->begin_pass({.positions = slots, .slots = slots, .page_size = kPage});
      set_->store_rows({placed.data(), DType::kF32, 4096, width, width}, slots, cache);
      set_->end_pass();
    }
    set_->memory().wait();
  }
  void pass(PassPlanner& planner, int rows, int cached) {
    std::vector<int32_t> positions, slots;
    for (int i = 0; i < rows; ++i) {
      positions.push_back(cached + i);
      slots.push_back(table_[positions.back() / kPage] * kPage + positions.back() % kPage);
    }
    const PassRows request{table_.data(), {rows, cached + rows}};
    const PreparedPass prepared = planner.prepare(PassKind::kPrefill, {&request, 1});
    arena_.reset();
    Pass pass{.kernels = *set_,
              .arena = arena_,
              .positions = positions,
              .slots = slots,
              .sequences = prepared.sequences,
              .path = prepared.plan.path,
              .rope = rope_.view(),
              .prefix_parts = prepared.prefix_parts};
    set_->begin_pass({.positions = positions,
                      .slots = slots,
                      .sequences = prepared.sequences,
                      .page_size = kPage});
    // Always the same rows, whatever a pass made of them.
    const int64_t width = config_.hidden_dim;
    const MatrixView h = {state_.data(), DType::kF32, rows, width, width};
    set_->convert({h_.data(), DType::kF32, rows, width, width}, h);
    layer_.forward(pass, store_.layers()[0], h);
    set_->end_pass();
  }

  ModelConfig config_;
  std::unique_ptr<KernelSet> set_;
  Arena arena_;
  RopeTables rope_;
  LatentStore store_;
  std::unique_ptr<WeightSource> source_;
  WeightLoader loader_;
  DecoderLayer layer_;
  std::vector<int32_t> table_;
  Buffer h_, state_;
  std::mt19937 random_{1};
};

struct Flags {
  std::string preset;
  int heads = 0;
  std::vector<std::string> variants;
};

void run(const Flags& flags) {
  Options options;
  options.config = make_preset(flags.preset, 2).config;
  options.config.layer_is_moe.assign(2, true);
  if (flags.heads > 0) options.config.head_count = flags.heads;
  for (const std::string& variant : flags.variants) {
    options.deterministic |= variant == "deterministic";
    options.f32_cache |= variant == "f32";
    options.small |= variant == "small";
  }
  PathBench bench(options);
  fmt::print("ms a layer; {} with {} heads{}{}\n{:>5} {:>7} {:>10} {:>10} {:>9} {:>8}\n",
             flags.preset, options.config.head_count,
             options.deterministic ? ", deterministic" : "", options.f32_cache ? ", f32 cache" : "",
             "rows", "cached", "absorbed", "expanded", "auto", "loss");
  for (const int rows : {16, 64, 128, 192, 256, 512, 1024, 2048, 4096, 8192})
    for (const int cached : {0, 1024, 4096, 16384, 40000, kMostCached}) {
      if (options.small && int64_t{rows} * (rows + cached) > kMostSmallPairs) continue;
      const double absorbed = bench.time(AttentionPath::kAbsorbed, rows, cached);
      const double expanded = bench.time(AttentionPath::kExpanded, rows, cached);
      const bool takes = bench.takes_expanded(rows, cached);
      const double taken = takes ? expanded : absorbed;
      fmt::print("{:>5} {:>7} {:>10.3f} {:>10.3f} {:>9} {:>7.1f}%\n", rows, cached, absorbed * 1e3,
                 expanded * 1e3, takes ? "expanded" : "absorbed",
                 100.0 * (taken / std::min(absorbed, expanded) - 1.0));
    }
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const PresetInfo& preset : preset_list()) names.emplace_back(preset.name);
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return run_program(
      "path_bench", "Time of one layer of a prefill pass on the GPU with either form of attention",
      argc, argv, [&](Command& command) {
        command.add_option("preset", flags.preset, "shape of the layer")
            ->required()
            ->check(one_of(preset_names()));
        command.add_option("heads", flags.heads, "0: as many as the preset has")
            ->capture_default_str()
            ->check(number_in(0, 1024));
        command
            .add_option("variants", flags.variants,
                        "f32: the cache's type; small: only passes that slow forms bear")
            ->check(one_of({"deterministic", "f32", "small"}));
        command.callback([&] { run(flags); });
      });
}
