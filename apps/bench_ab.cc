#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "apps/bench_batch.h"
#include "apps/bench_commands.h"
#include "apps/confidence.h"
#include "apps/flag_checks.h"
#include "apps/model_probe.h"
#include "apps/sha256.h"
#include "base/error.h"

namespace foresail {
namespace {

constexpr const char* kDraftKvIndices = "skip-draft-kv-indices";
constexpr const char* kMhaChunkMetadata = "skip-mha-chunk-metadata";
constexpr const char* kLaunchAhead = "launch-ahead";

void apply(LoadedModel& model, BatchBench& bench, const std::string& toggle, bool skip) {
  if (toggle == kLaunchAhead) return bench.set_launch_ahead(skip);
  model.planner().skip_unread_work(toggle != kDraftKvIndices || skip,
                                   toggle != kMhaChunkMetadata || skip);
}

void compare(const BatchBenchFlags& flags, LoadedModel& model, BatchBench& bench,
             const std::string& toggle_name, int rounds) {
  std::vector<std::vector<BatchFigures>> runs(2);  // [skip]
  std::vector<std::string> hashes(2);
  std::vector<double> tpot_change, ttft_change;
  bench.run();  // warm-up
  for (int round = 0; round < rounds; ++round) {
    BatchFigures of[2];
    for (int turn = 0; turn < 2; ++turn) {
      // The order alternates, so that drift of the machine hits both alike.
      const int skip = (turn + round) % 2;
      apply(model, bench, toggle_name, skip == 1);
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
  const auto median_run = [](std::vector<BatchFigures> list) {
    std::sort(list.begin(), list.end(), [](const BatchFigures& a, const BatchFigures& b) {
      return a.mean_tpot_ms < b.mean_tpot_ms;
    });
    return list[list.size() / 2];
  };
  const Confidence tpot = confidence_of(tpot_change);
  const Confidence ttft = confidence_of(ttft_change);
  const auto builds = [&](int skip) {
    const BatchFigures& f = runs[skip].front();
    return std::tuple(f.builds_per_step, f.prefill_ragged_plans, f.ahead);
  };
  const bool did_nothing = builds(0) == builds(1);
  if (flags.json) {
    fmt::print("{}\n",
               json_text(Json{{"toggle", toggle_name},
                              {"did_nothing", did_nothing},
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
                              {"sha256", hashes[0]}}));
    return;
  }
  const bool on_device = !model.kernels().memory().is_host();
  print_figures_header("the round of median TPOT", on_device);
  print_figures("no-" + toggle_name, median_run(runs[0]), on_device);
  print_figures(toggle_name, median_run(runs[1]), on_device);
  fmt::print(
      "change by {}: TPOT {:+.2f} % +- {:.2f}, TTFT {:+.2f} % +- {:.2f} (95 %; the mean of {} "
      "interleaved rounds, each its own pair: not the ratio of the rows above)\n{}token ids sha256 "
      "{} in every run\n{}\n",
      toggle_name, tpot.mean, tpot.half_width, ttft.mean, ttft.half_width, rounds,
      did_nothing ? "the toggle left out no work here: what differs is noise\n" : "", hashes[0],
      figures_notes(flags, on_device));
}

}  // namespace

void add_bench_ab(Command& bench) {
  Command* command = bench.add_subcommand(
      "ab", "What leaving out unread metadata is worth: the same run with and without it");
  auto flags = std::make_shared<BatchBenchFlags>();
  auto toggles = std::make_shared<std::vector<std::string>>();
  auto rounds = std::make_shared<int>(5);
  add_model_flags(*command, flags->model, true);
  add_batch_options(*command, *flags);
  command
      ->add_option("--toggle", *toggles,
                   "skip-draft-kv-indices, skip-mha-chunk-metadata, launch-ahead, or several, "
                   "comma separated")
      ->delimiter(',')
      ->required();
  command->add_option("--rounds", *rounds, "interleaved pairs of runs")
      ->capture_default_str()
      ->check(number_in(2, 1000));
  command->add_flag("--json", flags->json, "print JSON lines");
  command->callback([flags, toggles, rounds] {
    for (const std::string& toggle : *toggles)
      if (toggle != kDraftKvIndices && toggle != kMhaChunkMetadata && toggle != kLaunchAhead)
        throw_error(ErrorCode::kUsage,
                    "--toggle {} is unknown: choose skip-draft-kv-indices, "
                    "skip-mha-chunk-metadata or launch-ahead",
                    toggle);
    const auto model = load_for_batch(*flags);
    BatchBench batch(*model, flags->bench);
    ModelProbe probe(*model);
    for (const std::string& toggle : *toggles) {
      compare(*flags, *model, batch, toggle, *rounds);
      apply(*model, batch, toggle, true);
    }
    probe.probe_again();
    probe.print(flags->json, false);
  });
}

}  // namespace foresail
