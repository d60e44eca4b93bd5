#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/bench_commands.h"
#include "apps/flag_checks.h"
#include "apps/model_flags.h"
#include "apps/sha256.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "base/json.h"
#include "engine/batch_bench.h"

namespace foresail {
namespace {

struct BatchBenchFlags {
  ModelFlags model;
  BatchBenchOptions bench;
  bool json = false;
};

// Two-sided 95 % quantiles of Student's t for 1 ... 10 degrees of freedom; beyond, of the normal.
double t_quantile(size_t degrees) {
  constexpr double kTable[] = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23};
  return degrees <= std::size(kTable) ? kTable[degrees - 1] : 1.98;
}

struct Interval {
  double mean = 0.0;
  double half_width = 0.0;  // of the 95 % confidence interval
};
Interval confidence(const std::vector<double>& values) {
  const double mean = mean_of(values);
  if (values.size() < 2) return {mean, std::numeric_limits<double>::infinity()};
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto count = static_cast<double>(values.size());
  return {mean, t_quantile(values.size() - 1) * std::sqrt(squares / (count - 1) / count)};
}

// What every row of a table shows of one run.
struct Figures {
  double ttft_ms, mean_tpot_ms, median_tpot_ms, tokens_per_s, accept_length;
  double itl_chunk_ms, itl_token_ms;
  double metadata_us_per_step, builds_per_step, plans_per_step;
  int64_t prefill_ragged_plans;
};
Figures figures_of(const BatchBenchResult& run) {
  const auto steps = static_cast<double>(run.iteration_s.size());
  const MetadataCounts& counts = run.decode_metadata;
  return {
      .ttft_ms = run.ttft_s * 1e3,
      .mean_tpot_ms = mean_of(run.tpot_s) * 1e3,
      .median_tpot_ms = median_of(run.tpot_s) * 1e3,
      .tokens_per_s = static_cast<double>(run.decode_tokens) / run.decode_s(),
      .accept_length = run.accept_length(),
      .itl_chunk_ms = mean_of(run.iteration_s) * 1e3,
      .itl_token_ms = run.decode_s() * 1e3 / static_cast<double>(run.decode_tokens) *
                      static_cast<double>(run.tpot_s.size()),
      .metadata_us_per_step = run.metadata_s * 1e6 / steps,
      .builds_per_step = static_cast<double>(counts.key_index_builds + counts.ragged_plans) / steps,
      .plans_per_step = static_cast<double>(counts.plans) / steps,
      .prefill_ragged_plans = run.prefill_metadata.ragged_plans};
}

Json figures_json(const Figures& f) {
  return {{"ttft_ms", f.ttft_ms},
          {"mean_tpot_ms", f.mean_tpot_ms},
          {"median_tpot_ms", f.median_tpot_ms},
          {"tokens_per_s", f.tokens_per_s},
          {"accept_length", f.accept_length},
          {"itl_per_chunk_ms", f.itl_chunk_ms},
          {"itl_per_token_ms", f.itl_token_ms},
          {"metadata_us_per_iteration", f.metadata_us_per_step},
          {"metadata_builds_per_iteration", f.builds_per_step},
          {"attention_plans_per_iteration", f.plans_per_step},
          {"prefill_ragged_plans", f.prefill_ragged_plans},
          {"host_syncs_per_iteration", 0}};
}

void print_header(const char* first) {
  fmt::print("{:<28} {:>9} {:>10} {:>10} {:>9} {:>7} {:>9} {:>9} {:>7} {:>9} {:>9} {:>7}\n", first,
             "TTFT ms", "mean TPOT", "med. TPOT", "tok/s", "accept", "ITL/chunk", "ITL/token",
             "plans", "builds", "build us", "ragged");
}
void print_figures(const std::string& name, const Figures& f) {
  fmt::print(
      "{:<28} {:>9.2f} {:>10.3f} {:>10.3f} {:>9.1f} {:>7.2f} {:>9.3f} {:>9.3f} {:>7.2f} {:>9.2f} "
      "{:>9.1f} {:>7}\n",
      name, f.ttft_ms, f.mean_tpot_ms, f.median_tpot_ms, f.tokens_per_s, f.accept_length,
      f.itl_chunk_ms, f.itl_token_ms, f.plans_per_step, f.builds_per_step, f.metadata_us_per_step,
      f.prefill_ragged_plans);
}

std::string notes(const BatchBenchFlags& flags) {
  std::string text =
      "ms; TPOT: (end - first token) / (output tokens - 1) of each request; accept: 1 + accepted "
      "drafts / verify passes; plans, builds, build us: attention plans, metadata builds and their "
      "time per iteration; ragged: plans of prefill; host syncs: 0 (the CPU device has none)";
  if (flags.bench.synthetic_context)
    text += "\nSYNTHETIC CONTEXT: the cache holds random numbers, the output means nothing";
  if (flags.model.simulate_accept_length > 0)
    text += fmt::format("\nSIMULATED ACCEPTANCE of {}: the output is not the model's",
                        flags.model.simulate_accept_length);
  return text;
}

std::unique_ptr<LoadedModel> load(BatchBenchFlags& flags) {
  ModelOptions& options = flags.model.options;
  options.slot_count = flags.bench.batch_size;
  options.context_length = flags.bench.context_len + flags.bench.output_len;
  options.max_total_tokens =
      round_up<int64_t>(options.context_length + 3 * (options.speculative.steps + 1), 64) *
      flags.bench.batch_size;
  auto model = load_model(flags.model);
  flags.bench.draft_len = model->drafter() == nullptr ? 0 : options.speculative.steps;
  return model;
}

enum class Toggle { kDraftKvIndices, kMhaChunkMetadata };

void apply(LoadedModel& model, Toggle toggle, bool skip) {
  model.planner().skip_unread_work(toggle != Toggle::kDraftKvIndices || skip,
                                   toggle != Toggle::kMhaChunkMetadata || skip);
}

void bench_ab(BatchBenchFlags& flags, Toggle toggle, const std::string& toggle_name, int rounds) {
  const auto model = load(flags);
  BatchBench bench(*model, flags.bench);
  std::vector<std::vector<Figures>> runs(2);  // [skip]
  std::vector<std::string> hashes(2);
  std::vector<double> tpot_change, ttft_change;
  bench.run();  // warm-up
  for (int round = 0; round < rounds; ++round) {
    Figures of[2];
    for (int turn = 0; turn < 2; ++turn) {
      // The order alternates, so that drift of the machine hits both alike.
      const int skip = (turn + round) % 2;
      apply(*model, toggle, skip == 1);
      const BatchBenchResult run = bench.run();
      of[skip] = figures_of(run);
      const std::string hash = sha256_of_ids(run.ids);
      if (hashes[skip].empty()) hashes[skip] = hash;
      if (hash != hashes[skip] || (!hashes[1 - skip].empty() && hash != hashes[1 - skip]))
        throw_error(ErrorCode::kDevice, "the toggle changed the output: token ids {} and {}", hash,
                    hashes[1 - skip]);
      runs[skip].push_back(of[skip]);
    }
    tpot_change.push_back(100 * (of[1].mean_tpot_ms / of[0].mean_tpot_ms - 1));
    ttft_change.push_back(100 * (of[1].ttft_ms / of[0].ttft_ms - 1));
  }
  const auto median_run = [](std::vector<Figures> list) {
    std::sort(list.begin(), list.end(),
              [](const Figures& a, const Figures& b) { return a.mean_tpot_ms < b.mean_tpot_ms; });
    return list[list.size() / 2];
  };
  const Interval tpot = confidence(tpot_change);
  const Interval ttft = confidence(ttft_change);
  if (flags.json) {
    fmt::print("{}\n", Json{{"toggle", toggle_name},
                            {"off", figures_json(median_run(runs[0]))},
                            {"on", figures_json(median_run(runs[1]))},
                            {"tpot_change_percent", tpot.mean},
                            {"tpot_change_ci95", tpot.half_width},
                            {"ttft_change_percent", ttft.mean},
                            {"ttft_change_ci95", ttft.half_width},
                            {"rounds", rounds},
                            {"context", flags.bench.context_len},
                            {"output_len", flags.bench.output_len},
                            {"synthetic_context", flags.bench.synthetic_context},
                            {"simulated_accept_length", flags.model.simulate_accept_length},
                            {"sha256", hashes[0]}}
                           .dump());
    return;
  }
  print_header("median of rounds");
  print_figures("no-" + toggle_name, median_run(runs[0]));
  print_figures(toggle_name, median_run(runs[1]));
  fmt::print(
      "change by {}: TPOT {:+.2f} % +- {:.2f}, TTFT {:+.2f} % +- {:.2f} (95 %, {} interleaved "
      "rounds)\ntoken ids sha256 {} in every run\n{}\n",
      toggle_name, tpot.mean, tpot.half_width, ttft.mean, ttft.half_width, rounds, hashes[0],
      notes(flags));
}

// With a list, several batch sizes.
void add_batch_options(CLI::App& command, BatchBenchFlags& flags,
                       std::vector<int32_t>* batch_sizes = nullptr) {
  CLI::Option* batch =
      batch_sizes == nullptr
          ? command.add_option("--batch-size", flags.bench.batch_size, "requests at once")
          : command.add_option("--batch-size", *batch_sizes, "requests at once, comma separated")
                ->delimiter(',');
  batch->capture_default_str()->check(number_in(1, 1024));
  command.add_option("--ctx,--input-len", flags.bench.context_len, "tokens of each prompt")
      ->capture_default_str()
      ->check(number_in(1, 1 << 24));
  command.add_option("--output-len", flags.bench.output_len, "tokens of each answer")
      ->capture_default_str()
      ->check(number_in(2, 1 << 24));
  command.add_option("--temperature", flags.bench.temperature, "of sampling; 0: greedy")
      ->capture_default_str()
      ->check(number_in(0.0, 2.0));
  command.add_flag("--synthetic-context", flags.bench.synthetic_context,
                   "fill the cache with random numbers instead of prefilling");
}

void bench_batch(BatchBenchFlags& flags, int runs) {
  const auto model = load(flags);
  BatchBench bench(*model, flags.bench);
  bench.run();
  if (!flags.json) print_header("run");
  for (int run = 0; run < runs; ++run) {
    const Figures figures = figures_of(bench.run());
    if (flags.json)
      fmt::print("{}\n", figures_json(figures).dump());
    else
      print_figures(std::to_string(run + 1), figures);
  }
  if (!flags.json) fmt::print("{}\n", notes(flags));
}

// Adaptive depth beside every fixed one, round by round in turn.
void bench_depth(BatchBenchFlags& flags, const std::vector<int32_t>& batch_sizes, int rounds) {
  flags.bench.batch_size = *std::max_element(batch_sizes.begin(), batch_sizes.end());
  const auto model = load(flags);
  if (flags.bench.draft_len == 0)
    throw_error(ErrorCode::kUsage,
                "bench depth needs --speculative-algorithm and --speculative-num-steps above 0");
  const int32_t most = flags.bench.draft_len;
  if (!flags.json) {
    fmt::print("{:>6} ", "batch");
    for (int32_t depth = 0; depth <= most; ++depth)
      fmt::print("{:>9}", fmt::format("{} drafts", depth));
    fmt::print("{:>9} {:>8} {:>18}\n", "adaptive", "accept", "adaptive / best");
  }
  for (const int32_t batch_size : batch_sizes) {
    BatchBenchOptions options = flags.bench;
    options.batch_size = batch_size;
    BatchBench bench(*model, options);
    bench.set_depth(most, true);
    bench.run();                                       // learns
    std::vector<std::vector<double>> rates(most + 2);  // [depth], the last is adaptive
    double accept_length = 1.0;
    for (int round = 0; round < rounds; ++round)
      for (int32_t turn = 0; turn <= most + 1; ++turn) {
        const int32_t which = (turn + round) % (most + 2);
        bench.set_depth(std::min(which, most), which == most + 1);
        const BatchBenchResult run = bench.run();
        rates[which].push_back(static_cast<double>(run.decode_tokens) / run.decode_s());
        if (which == most + 1) accept_length = run.accept_length();
      }
    std::string costs;
    for (int32_t depth = 0; depth <= most; ++depth)
      costs +=
          fmt::format(" {:.3f}", bench.adaptive_depth()->expected_seconds(batch_size, depth) * 1e3);
    if (!flags.json)
      fmt::print(stderr, "batch {}: learned ms per iteration, by depth:{}\n", batch_size, costs);
    size_t best = 0;
    for (int32_t depth = 1; depth <= most; ++depth)
      if (median_of(rates[depth]) > median_of(rates[best])) best = depth;
    std::vector<double> ratios;
    for (int round = 0; round < rounds; ++round)
      ratios.push_back(rates[most + 1][round] / rates[best][round]);
    if (flags.json) {
      Json medians = Json::array();
      for (const std::vector<double>& list : rates) medians.push_back(median_of(list));
      fmt::print("{}\n", Json{{"batch_size", batch_size},
                              {"tokens_per_s_by_depth_then_adaptive", medians},
                              {"accept_length", accept_length},
                              {"adaptive_over_best_median", median_of(ratios)},
                              {"adaptive_over_best", ratios}}
                             .dump());
      continue;
    }
    fmt::print("{:>6} ", batch_size);
    for (const std::vector<double>& list : rates) fmt::print("{:>9.1f}", median_of(list));
    fmt::print(" {:>8.2f} {:>6.3f} ({:.3f}-{:.3f})\n", accept_length, median_of(ratios),
               *std::min_element(ratios.begin(), ratios.end()),
               *std::max_element(ratios.begin(), ratios.end()));
  }
  if (!flags.json)
    fmt::print(
        "tok/s of the whole batch, median of {} interleaved rounds; the ratio is adaptive "
        "over the best fixed depth, round by round\n",
        rounds);
}

}  // namespace

void add_bench_depth(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("depth", "Adaptive speculation depth beside every fixed depth");
  auto flags = std::make_shared<BatchBenchFlags>();
  auto batch_sizes = std::make_shared<std::vector<int32_t>>(std::vector<int32_t>{1, 4, 16});
  auto rounds = std::make_shared<int>(5);
  flags->bench.context_len = 64;
  flags->bench.output_len = 128;
  add_model_flags(*command, flags->model, true);
  add_batch_options(*command, *flags, batch_sizes.get());
  command->add_option("--rounds", *rounds, "interleaved rounds")
      ->capture_default_str()
      ->check(number_in(1, 1000));
  command->add_flag("--json", flags->json, "print JSON lines");
  command->callback([flags, batch_sizes, rounds] { bench_depth(*flags, *batch_sizes, *rounds); });
}

void add_bench_batch(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "batch", "Serve one batch in process: TTFT, TPOT, accept length, metadata per iteration");
  auto flags = std::make_shared<BatchBenchFlags>();
  auto runs = std::make_shared<int>(3);
  add_model_flags(*command, flags->model, true);
  add_batch_options(*command, *flags);
  command->add_option("--runs", *runs, "timed runs")
      ->capture_default_str()
      ->check(number_in(1, 1000));
  command->add_flag("--json", flags->json, "print JSON lines");
  command->callback([flags, runs] { bench_batch(*flags, *runs); });
}

void add_bench_ab(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "ab", "What leaving out unread metadata is worth: the same run with and without it");
  auto flags = std::make_shared<BatchBenchFlags>();
  auto toggle = std::make_shared<std::string>();
  auto rounds = std::make_shared<int>(5);
  add_model_flags(*command, flags->model, true);
  add_batch_options(*command, *flags);
  command->add_option("--toggle", *toggle, "skip-draft-kv-indices or skip-mha-chunk-metadata")
      ->required();
  command->add_option("--rounds", *rounds, "interleaved pairs of runs")
      ->capture_default_str()
      ->check(number_in(1, 1000));
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, toggle, rounds] {
    if (*toggle != "skip-draft-kv-indices" && *toggle != "skip-mha-chunk-metadata")
      throw_error(ErrorCode::kUsage,
                  "--toggle {} is unknown: choose skip-draft-kv-indices or skip-mha-chunk-metadata",
                  *toggle);
    bench_ab(
        *flags,
        *toggle == "skip-draft-kv-indices" ? Toggle::kDraftKvIndices : Toggle::kMhaChunkMetadata,
        *toggle, *rounds);
  });
}

}  // namespace foresail
