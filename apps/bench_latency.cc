#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "apps/bench_batch.h"
#include "apps/bench_commands.h"
#include "apps/flag_checks.h"
#include "apps/model_flags.h"
#include "apps/model_probe.h"
#include "apps/progress_line.h"
#include "apps/standard_error.h"
#include "base/error.h"
#include "base/json.h"
#include "engine/latency_bench.h"

namespace foresail {
namespace {

struct BenchFlags {
  BatchBenchFlags batch;  // the model too
  std::vector<int64_t> prefill{512}, depths{512}, widths{1, 2, 4, 8};
  int runs = 9;
};

// What a pass of several rows costs against one row of the same depth, and what it must cost at
// least where both only read: more rows choose more experts.
struct WidthCost {
  double measured = 0.0, of_bytes = 0.0;  // 0: nothing to compare with
};

WidthCost width_cost(const PassTime& time, const PassTime& one_row) {
  if (one_row.rows == 0) return {};
  return {time.median_s / one_row.median_s, time.bytes / one_row.bytes};
}

std::string percent(double share) {
  return std::isnan(share) ? "-" : fmt::format("{:.0f} %", 100 * share);
}

std::string times(double ratio) {
  return ratio > 0 ? fmt::format("{:.2f}x", ratio) : "";
}

struct Row {
  const char* kind;
  PassTime time;
  WidthCost cost = {};
};

void print_row(const Row& row, const Floors& floors, bool json) {
  const auto& [kind, time, cost] = row;
  const double byte_share = time.bytes / time.median_s / floors.bytes_per_s;
  const double operation_share = time.operations / time.median_s / floors.operations_per_s;
  if (json) {
    fmt::print("{}\n",
               json_text(Json{{"kind", kind},
                              {"rows", time.rows},
                              {"depth", time.depth},
                              {"median_ms", time.median_s * 1e3},
                              {"fastest_ms", time.fastest_s * 1e3},
                              {"runs", time.runs},
                              {"tokens_per_s", static_cast<double>(time.rows) / time.median_s},
                              {"bytes", time.bytes},
                              {"expert_bytes", time.expert_bytes},
                              {"operations", time.operations},
                              {"share_of_read_probe", byte_share},
                              {"share_of_arithmetic_probe", operation_share},
                              {"relative_to_one_row", cost.measured},
                              {"bytes_relative_to_one_row", cost.of_bytes}}));
    return;
  }
  fmt::print("{:<8} {:>6} {:>7} {:>10.2f} {:>10.2f} {:>9.1f} {:>10} {:>10} {:>9} {:>9} {:>10}\n",
             kind, time.rows, time.depth, time.median_s * 1e3, time.fastest_s * 1e3,
             static_cast<double>(time.rows) / time.median_s, percent(byte_share),
             percent(operation_share), times(cost.measured), times(cost.of_bytes),
             format_bytes(static_cast<uint64_t>(time.expert_bytes)));
}

void bench_passes(BenchFlags& flags) {
  int64_t longest = 0;
  for (const int64_t length : flags.prefill) longest = std::max(longest, length);
  for (const int64_t depth : flags.depths)
    longest =
        std::max(longest, depth + *std::max_element(flags.widths.begin(), flags.widths.end()));
  const ModelConfig config = read_model_config(flags.batch.model.options.model_path);
  if (longest > config.max_positions)
    throw_error(ErrorCode::kUsage,
                "passes up to token {} exceed the model's {} positions: lower --prefill, --depth "
                "or --width",
                longest, config.max_positions);
  flags.batch.model.options.context_length =
      std::max(flags.batch.model.options.context_length, longest);
  const auto model = load_model(flags.batch.model);
  ModelProbe probe(*model);
  LatencyBench bench(*model, 1);
  // Judged by what the machine could do before or after them, so printed when both are known.
  std::vector<Row> rows;
  const size_t passes = flags.prefill.size() + flags.depths.size() * flags.widths.size();
  if (!flags.batch.model.quiet) tell("timing {} passes\n", passes);
  ProgressLine progress(!flags.batch.model.quiet);
  const auto show_next = [&](int64_t width, int64_t depth) {
    progress.show(fmt::format("{} of {}: {} rows at {}", rows.size() + 1, passes, width, depth));
  };
  for (const int64_t length : flags.prefill) {
    show_next(length, 0);
    rows.push_back({"prefill", bench.time_pass(length, 0, true,
                                               std::max(1, length > 1024 ? 2 : flags.runs / 3))});
  }
  for (const int64_t depth : flags.depths) {
    if (depth > 0) bench.time_pass(depth, 0, true, 1);
    PassTime one_row;
    for (const int64_t width : flags.widths) {
      show_next(width, depth);
      const PassTime time = bench.time_pass(width, depth, false, flags.runs * 3);
      if (width == 1) one_row = time;
      rows.push_back({width == 1 ? "decode" : "verify", time, width_cost(time, one_row)});
    }
  }
  progress.clear();
  probe.probe_again();
  if (!flags.batch.json)
    fmt::print("{:<8} {:>6} {:>7} {:>10} {:>10} {:>9} {:>10} {:>10} {:>9} {:>9} {:>10}\n", "pass",
               "rows", "depth", "median ms", "fastest ms", "tok/s", "of bytes", "of ops",
               "vs 1 row", "its bytes", "experts");
  for (const Row& row : rows) print_row(row, probe.fastest(), flags.batch.json);
  probe.print(flags.batch.json, true);
}

}  // namespace

void add_bench_latency(Command& bench) {
  auto flags = std::make_shared<BenchFlags>();
  Command* command = bench.add_subcommand(
      "latency", "Time the passes of one request, or serve one batch in process");
  command->footer(
      "With --batch-size, --input-len or --output-len a batch of equal requests is served in "
      "process:\n"
      "TTFT, TPOT, accept length, metadata per iteration. Else the passes of one request are "
      "timed:\n"
      "  of bytes, of ops   what a pass must read and compute, over its time and the probes' "
      "rates\n"
      "  vs 1 row           time against that of one row\n"
      "  its bytes          bytes it must read against those of one row: the floor of the former\n"
      "  experts            the part of these bytes that is routed experts, each distinct one "
      "once");
  add_model_flags(*command, flags->batch.model, true);
  add_batch_options(*command, flags->batch);
  command->add_option("--prefill", flags->prefill, "prompt lengths, comma separated")
      ->delimiter(',')
      ->capture_default_str()
      ->check(number_in(1, 1 << 24));
  command
      ->add_option("--depth", flags->depths, "cached tokens before a decode pass, comma separated")
      ->delimiter(',')
      ->capture_default_str()
      ->check(number_in(0, 1 << 24));
  command->add_option("--width", flags->widths, "rows of a decode or verify pass, comma separated")
      ->delimiter(',')
      ->capture_default_str()
      ->check(number_in(1, 128));
  command
      ->add_option("--runs", flags->runs,
                   "timed runs: three times as many of a decode or verify pass, a third of a "
                   "prefill (beyond 1024 rows two)")
      ->capture_default_str()
      ->check(number_in(1, 1000));
  command->add_flag("--json", flags->batch.json, "print JSON lines");
  command->callback([flags, command] {
    const auto given = [&](const char* option) { return command->count(option) > 0; };
    for (const char* of_batch : {"--batch-size", "--input-len", "--output-len", "--temperature",
                                 "--synthetic-context", "--disable-overlap-schedule"}) {
      if (!given(of_batch)) continue;
      for (const char* of_passes : {"--prefill", "--depth", "--width"})
        if (given(of_passes))
          throw_error(
              ErrorCode::kUsage,
              "{} is for passes of one request, which a batch (--batch-size, --ctx, "
              "--output-len, --temperature, --synthetic-context) does not time: leave it out",
              of_passes);
      return bench_batch(flags->batch, flags->runs);
    }
    if (given("--speculative-algorithm"))
      throw_error(ErrorCode::kUsage,
                  "passes of one request do not speculate: add --batch-size, --input-len or "
                  "--output-len to serve a batch, or leave --speculative-algorithm out");
    bench_passes(*flags);
  });
}

}  // namespace foresail
