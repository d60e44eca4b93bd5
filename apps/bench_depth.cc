#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "apps/bench_batch.h"
#include "apps/bench_commands.h"
#include "apps/confidence.h"
#include "apps/flag_checks.h"
#include "apps/model_probe.h"
#include "apps/standard_error.h"
#include "base/error.h"

namespace foresail {
namespace {

// Adaptive depth beside every fixed one, round by round in turn.
void bench_depth(BatchBenchFlags& flags, const std::vector<int32_t>& batch_sizes, int rounds) {
  flags.bench.batch_size = *std::max_element(batch_sizes.begin(), batch_sizes.end());
  const auto model = load_for_batch(flags);
  if (flags.bench.draft_len == 0)
    throw_error(ErrorCode::kUsage,
                "bench depth needs --speculative-algorithm and --speculative-num-steps above 0");
  const int32_t most = flags.bench.draft_len;
  ModelProbe probe(*model);
  if (!flags.json) {
    fmt::print("{:>6} ", "batch");
    for (int32_t depth = 0; depth <= most; ++depth)
      fmt::print("{:>9}", fmt::format("{} drafts", depth));
    fmt::print("{:>9} {:>8} {:>15} {:>21}\n", "adaptive", "accept", "adaptive / best",
               "median (least-most)");
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
    if (!flags.json) tell("batch {}: learned ms per iteration, by depth:{}\n", batch_size, costs);
    size_t best = 0;
    for (int32_t depth = 1; depth <= most; ++depth)
      if (median_of(rates[depth]) > median_of(rates[best])) best = depth;
    std::vector<double> ratios;
    for (int round = 0; round < rounds; ++round)
      ratios.push_back(rates[most + 1][round] / rates[best][round]);
    const Confidence mean = confidence_of(ratios);
    if (flags.json) {
      Json medians = Json::array();
      for (const std::vector<double>& list : rates) medians.push_back(median_of(list));
      fmt::print("{}\n",
                 json_text(Json{{"batch_size", batch_size},
                                {"tokens_per_s_by_depth_then_adaptive", medians},
                                {"accept_length", accept_length},
                                {"adaptive_over_best_mean", mean.mean},
                                {"adaptive_over_best_half_width", mean.half_width},
                                {"adaptive_over_best_median", median_of(ratios)},
                                {"adaptive_over_best", ratios},
                                {"synthetic_context", flags.bench.synthetic_context},
                                {"simulated_accept_length", flags.model.simulate_accept_length}}));
      continue;
    }
    fmt::print("{:>6} ", batch_size);
    for (const std::vector<double>& list : rates) fmt::print("{:>9.1f}", median_of(list));
    fmt::print(" {:>8.2f} {:>7.3f} +- {:.3f}  {:>6.3f} ({:.3f}-{:.3f})\n", accept_length, mean.mean,
               mean.half_width, median_of(ratios), *std::min_element(ratios.begin(), ratios.end()),
               *std::max_element(ratios.begin(), ratios.end()));
    std::fflush(stdout);  // rows of a slow model are worth seeing as they come
  }
  if (!flags.json)
    fmt::print(
        "tok/s of the whole batch, median of {} interleaved rounds; the ratio is adaptive "
        "over the best fixed depth, round by round: mean with its 95 % interval, median{}\n",
        rounds, unreal_notes(flags));
  probe.probe_again();
  probe.print(flags.json, false);
}

}  // namespace

void add_bench_depth(Command& bench) {
  Command* command =
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

}  // namespace foresail
