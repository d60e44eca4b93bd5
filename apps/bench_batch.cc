#include "apps/bench_batch.h"

#include <fmt/core.h>

#include "apps/flag_checks.h"
#include "base/checked_math.h"

namespace foresail {

BatchFigures figures_of(const BatchBenchResult& run) {
  const auto steps = static_cast<double>(run.iteration_s.size());
  const MetadataCounts& counts = run.decode_metadata;
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
      .replays = per_step(run.decode_device.replays)};
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
          {"graph_replays_per_iteration", f.replays}};
}

void print_figures_header(const char* first) {
  fmt::print(
      "{:<28} {:>9} {:>10} {:>10} {:>9} {:>7} {:>9} {:>9} {:>7} {:>9} {:>9} {:>7} {:>6} {:>8} "
      "{:>8} {:>7} {:>8}\n",
      first, "TTFT ms", "mean TPOT", "med. TPOT", "tok/s", "accept", "ITL/chunk", "ITL/token",
      "plans", "builds", "build us", "ragged", "waits", "up kB", "down kB", "passes", "replays");
}
void print_figures(const std::string& name, const BatchFigures& f) {
  fmt::print(
      "{:<28} {:>9.2f} {:>10.3f} {:>10.3f} {:>9.1f} {:>7.2f} {:>9.3f} {:>9.3f} {:>7.2f} {:>9.2f} "
      "{:>9.1f} {:>7} {:>6.2f} {:>8.1f} {:>8.1f} {:>7.2f} {:>8.2f}\n",
      name, f.ttft_ms, f.mean_tpot_ms, f.median_tpot_ms, f.tokens_per_s, f.accept_length,
      f.itl_chunk_ms, f.itl_token_ms, f.plans_per_step, f.builds_per_step, f.metadata_us_per_step,
      f.prefill_ragged_plans, f.waits, f.upload_kb, f.download_kb, f.passes, f.replays);
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

std::string figures_notes(const BatchBenchFlags& flags) {
  return "ms; TPOT: (end - first token) / (output tokens - 1) of each request; accept: 1 + "
         "accepted "
         "drafts / verify passes; plans, builds, build us: attention plans, metadata builds and "
         "their "
         "time per iteration; ragged: plans of prefill; waits of the host for a GPU, kB sent to it "
         "and "
         "fetched, its passes and those replayed as one graph, per iteration" +
         unreal_notes(flags);
}

std::unique_ptr<LoadedModel> load_for_batch(BatchBenchFlags& flags) {
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
  command.add_flag("--synthetic-context", flags.bench.synthetic_context,
                   "fill the cache with random numbers instead of prefilling");
}

void bench_batch(BatchBenchFlags& flags, int runs) {
  const auto model = load_for_batch(flags);
  BatchBench bench(*model, flags.bench);
  bench.run();
  if (!flags.json) print_figures_header("run");
  for (int run = 0; run < runs; ++run) {
    const BatchFigures figures = figures_of(bench.run());
    if (flags.json)
      fmt::print("{}\n", json_text(figures_json(figures)));
    else
      print_figures(std::to_string(run + 1), figures);
  }
  if (!flags.json) fmt::print("{}\n", figures_notes(flags));
}

}  // namespace foresail
