#include "apps/bench_batch.h"

#include <fmt/core.h>

#include <cmath>
#include <functional>

#include "apps/flag_checks.h"
#include "apps/model_probe.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "engine/engine_bench.h"

namespace foresail {

namespace {

// NAN: there is nothing to divide by.
double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? NAN : static_cast<double>(part) / static_cast<double>(whole);
}

Json or_null(double figure) {
  return std::isnan(figure) ? Json() : Json(figure);
}

std::string or_dash(double figure, int digits) {
  return std::isnan(figure) ? "-" : fmt::format("{:.{}f}", figure, digits);
}

}  // namespace

BatchFigures figures_of(const BatchBenchResult& run) {
  const auto steps = static_cast<double>(run.iteration_s.size());
  const MetadataCounts& counts = run.decode_metadata;
  const DeviceCounts& device = run.decode_device;
  const auto per_step = [&](int64_t count) { return static_cast<double>(count) / steps; };
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
      .prefill_ragged_plans = run.prefill_metadata.ragged_plans,
      .waits = per_step(run.decode_device.waits),
      .upload_kb = per_step(run.decode_device.upload_bytes) / 1e3,
      .download_kb = per_step(run.decode_device.download_bytes) / 1e3,
      .passes = per_step(run.decode_device.passes),
      .replays = per_step(run.decode_device.replays),
      .ahead = per_step(run.launched_ahead),
      .host_us = device.passes == 0
                     ? 0.0
                     : (run.decode_s() * 1e6 - 1e-3 * static_cast<double>(device.wait_ns)) / steps,
      .launches_per_pass = ratio(device.launches, device.counted_passes),
      .launches_per_layer = ratio(device.layer_launches, device.layers),
      .idle_share = ratio(device.idle_ns, device.idle_ns + device.busy_ns)};
}

Json figures_json(const BatchFigures& f) {
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
          {"device_waits_per_iteration", f.waits},
          {"upload_kb_per_iteration", f.upload_kb},
          {"download_kb_per_iteration", f.download_kb},
          {"device_passes_per_iteration", f.passes},
          {"graph_replays_per_iteration", f.replays},
          {"launched_ahead_share", f.ahead},
          {"host_us_per_iteration", f.host_us},
          {"launches_per_pass", or_null(f.launches_per_pass)},
          {"launches_per_layer", or_null(f.launches_per_layer)},
          {"gpu_idle_share", or_null(f.idle_share)}};
}

namespace {

struct Column {
  const char* title;
  int width, digits;
  double (*value)(const BatchFigures&);
  bool of_device = false;  // says nothing on the CPU
};

constexpr Column kColumns[] = {
    {"TTFT ms", 9, 2, [](const BatchFigures& f) { return f.ttft_ms; }},
    {"mean TPOT", 10, 3, [](const BatchFigures& f) { return f.mean_tpot_ms; }},
    {"med. TPOT", 10, 3, [](const BatchFigures& f) { return f.median_tpot_ms; }},
    {"tok/s", 9, 1, [](const BatchFigures& f) { return f.tokens_per_s; }},
    {"accept", 7, 2, [](const BatchFigures& f) { return f.accept_length; }},
    {"ITL/chunk", 9, 3, [](const BatchFigures& f) { return f.itl_chunk_ms; }},
    {"ITL/token", 9, 3, [](const BatchFigures& f) { return f.itl_token_ms; }},
    {"plans", 7, 2, [](const BatchFigures& f) { return f.plans_per_step; }},
    {"builds", 9, 2, [](const BatchFigures& f) { return f.builds_per_step; }},
    {"build us", 9, 1, [](const BatchFigures& f) { return f.metadata_us_per_step; }},
    {"ragged", 7, 0,
     [](const BatchFigures& f) { return static_cast<double>(f.prefill_ragged_plans); }},
    {"waits", 6, 2, [](const BatchFigures& f) { return f.waits; }, true},
    {"up kB", 8, 1, [](const BatchFigures& f) { return f.upload_kb; }, true},
    {"down kB", 8, 1, [](const BatchFigures& f) { return f.download_kb; }, true},
    {"passes", 7, 2, [](const BatchFigures& f) { return f.passes; }, true},
    {"replays", 8, 2, [](const BatchFigures& f) { return f.replays; }, true},
    {"ahead", 6, 2, [](const BatchFigures& f) { return f.ahead; }, true},
    {"host us", 8, 1, [](const BatchFigures& f) { return f.host_us; }, true},
    {"la./pass", 9, 1, [](const BatchFigures& f) { return f.launches_per_pass; }, true},
    {"la./layer", 9, 2, [](const BatchFigures& f) { return f.launches_per_layer; }, true},
    {"idle %", 6, 2, [](const BatchFigures& f) { return 100 * f.idle_share; }, true}};

void print_line(const std::string& first, bool on_device,
                const std::function<std::string(const Column&)>& text) {
  std::string line = fmt::format("{:<28}", first);
  for (const Column& column : kColumns)
    if (on_device || !column.of_device) line += fmt::format(" {:>{}}", text(column), column.width);
  fmt::print("{}\n", line);
}

}  // namespace

void print_figures_header(const std::string& first, bool on_device) {
  print_line(first, on_device, [](const Column& column) { return std::string(column.title); });
}
void print_figures(const std::string& name, const BatchFigures& figures, bool on_device) {
  print_line(name, on_device,
             [&](const Column& column) { return or_dash(column.value(figures), column.digits); });
}
void print_medians(const std::vector<BatchFigures>& runs, bool on_device) {
  print_line("median", on_device, [&](const Column& column) {
    std::vector<double> values;
    for (const BatchFigures& run : runs) {
      if (const double value = column.value(run); !std::isnan(value)) values.push_back(value);
    }
    return or_dash(values.empty() ? NAN : median_of(std::move(values)), column.digits);
  });
}

std::string unreal_notes(const BatchBenchFlags& flags) {
  std::string text;
  if (flags.bench.synthetic_context)
    text += "\nSYNTHETIC CONTEXT: the cache holds random numbers, the output means nothing";
  if (flags.model.simulate_accept_length > 0)
    text += fmt::format("\nSIMULATED ACCEPTANCE of {}: the output is not the model's",
                        flags.model.simulate_accept_length);
  return text;
}

std::string figures_notes(const BatchBenchFlags& flags, bool on_device) {
  std::string text =
      "ms; TPOT: (end - first token) / (output tokens - 1) of each request; accept: 1 + accepted "
      "drafts / passes that had drafts; plans, builds, build us: attention plans, metadata builds "
      "and their time per iteration; ragged: plans of prefill";
  if (on_device)
    text +=
        "; waits of the host for a GPU, kB sent to it and fetched, its passes and graphs launched, "
        "per iteration; ahead: share of iterations launched before the outcome of the last was "
        "known; host us: of an iteration what was no waiting for the GPU; la./pass, la./layer: "
        "kernels of a recorded pass and of one target layer; idle: of the GPU's time what lay "
        "between graphs, copies included (the timed run)";
  return text + unreal_notes(flags);
}

std::unique_ptr<LoadedModel> load_for_batch(BatchBenchFlags& flags) {
  ModelOptions& options = flags.model.options;
  if (flags.model.command->count("--context-length") > 0)
    throw_error(ErrorCode::kUsage,
                "--context-length is not for a batch: its requests are of --ctx and --output-len");
  const int64_t positions = read_model_config(options.model_path).max_positions;
  if (flags.bench.context_len + flags.bench.output_len > positions)
    throw_error(ErrorCode::kUsage,
                "--ctx {} and --output-len {} exceed the model's {} positions together",
                flags.bench.context_len, flags.bench.output_len, positions);
  options.slot_count = flags.bench.batch_size;
  options.context_length = flags.bench.context_len + flags.bench.output_len;
  options.max_total_tokens =
      round_up<int64_t>(options.context_length + 3 * (options.speculative.steps + 1), 64) *
      flags.bench.batch_size;
  auto model = load_model(flags.model);
  flags.bench.draft_len = model->drafter() == nullptr ? 0 : options.speculative.steps;
  return model;
}

void add_batch_options(Command& command, BatchBenchFlags& flags,
                       std::vector<int32_t>* batch_sizes) {
  Flag* batch =
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
  command.add_flag_callback(
      "--disable-overlap-schedule", [&flags] { flags.bench.launch_ahead = false; },
      "cuda: wait for the results of an iteration before the next one is launched");
  command.add_flag("--synthetic-context", flags.bench.synthetic_context,
                   "fill the cache with random numbers instead of prefilling");
}

namespace {

// What only a GPU has: the share of its time that it waits, without the engine and with it.
void bench_on_device(const BatchBenchFlags& flags, LoadedModel& model, BatchBench& bench) {
  for (const bool ahead : {false, true}) {
    bench.set_launch_ahead(ahead);
    bench.time_work(true);
    const BatchFigures timed = figures_of(bench.run());
    bench.time_work(false);
    if (flags.json) {
      Json json = figures_json(timed);
      json["kind"] = ahead ? "timed" : "timed, waiting";
      fmt::print("{}\n", json.dump());
    } else {
      print_figures(ahead ? "timed" : "timed, waiting", timed, true);
    }
  }
  if (flags.bench.synthetic_context) return;
  for (const bool ahead : {false, true}) {
    BatchBenchOptions options = flags.bench;
    options.launch_ahead = ahead;
    const EngineBenchResult run = bench_engine(model, options);
    const auto steps = static_cast<double>(run.steps);
    const double idle = ratio(run.device.idle_ns, run.device.idle_ns + run.device.busy_ns);
    const auto waits = static_cast<double>(run.device.waits) / steps;
    const auto graphs = static_cast<double>(run.device.replays) / steps;
    if (flags.json) {
      fmt::print("{}\n",
                 Json{{"kind", ahead ? "engine" : "engine, waiting"},
                      {"steps", run.steps},
                      {"launched_ahead_share", static_cast<double>(run.launched_ahead) / steps},
                      {"step_us", 1e6 * run.wall_s / steps},
                      {"host_us_per_iteration", 1e6 * run.host_s / steps},
                      {"device_waits_per_iteration", waits},
                      {"graph_replays_per_iteration", graphs},
                      {"gpu_idle_share", or_null(idle)}}
                     .dump());
      continue;
    }
    fmt::print(
        "through the engine, {}: {} steps of {:.1f} us, {:.1f} us of them the host's (plan, "
        "launch, commit, text), {:.2f} waits, {:.2f} graphs, GPU idle {} %\n",
        ahead ? "launched ahead" : "waiting", run.steps, 1e6 * run.wall_s / steps,
        1e6 * run.host_s / steps, waits, graphs, or_dash(100 * idle, 2));
  }
}

}  // namespace

void bench_batch(BatchBenchFlags& flags, int runs) {
  const auto model = load_for_batch(flags);
  BatchBench bench(*model, flags.bench);
  ModelProbe probe(*model);
  bench.run();
  const bool on_device = !model->kernels().memory().is_host();
  if (!flags.json) print_figures_header("run", on_device);
  std::vector<BatchFigures> figures;
  for (int run = 0; run < runs; ++run) {
    figures.push_back(figures_of(bench.run()));
    if (flags.json)
      fmt::print("{}\n", json_text(figures_json(figures.back())));
    else
      print_figures(std::to_string(run + 1), figures.back(), on_device);
  }
  if (!flags.json) print_medians(figures, on_device);
  if (on_device) bench_on_device(flags, *model, bench);
  if (!flags.json) fmt::print("{}\n", figures_notes(flags, on_device));
  probe.probe_again();
  probe.print(flags.json, false);
}

}  // namespace foresail
