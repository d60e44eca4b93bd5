// What the benches of whole batches share: their options, their figures and the table of these.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/command.h"
#include "apps/model_flags.h"
#include "base/json.h"
#include "engine/batch_bench.h"

namespace foresail {

struct BatchBenchFlags {
  ModelFlags model;
  BatchBenchOptions bench;
  bool json = false;
};

// Figures of one run, as in a row of the table. Milliseconds where the name says so.
struct BatchFigures {
  double ttft_ms, mean_tpot_ms, median_tpot_ms, tokens_per_s, accept_length;
  double itl_chunk_ms, itl_token_ms;
  double metadata_us_per_step, builds_per_step, plans_per_step;
  int64_t prefill_ragged_plans;
  // What a GPU was asked for, per iteration; zeros on the CPU.
  double waits, upload_kb, download_kb, passes, replays;
  double ahead;    // share of the iterations that were launched before the outcome of the last
  double host_us;  // of an iteration what was no waiting for the GPU
  // Kernels of a recorded pass, and of one layer of a target; NAN: nothing was recorded.
  double launches_per_pass, launches_per_layer;
  double idle_share;  // of the GPU's time, between iterations; NAN: not timed
};
BatchFigures figures_of(const BatchBenchResult& run);
Json figures_json(const BatchFigures& figures);
// The table, of which some columns are shown only where a device was asked for something.
void print_figures_header(const std::string& first, bool on_device);
void print_figures(const std::string& name, const BatchFigures& figures, bool on_device);
// Of every column by itself.
void print_medians(const std::vector<BatchFigures>& runs, bool on_device);
// What makes figures unreal, a line each; empty: nothing does.
std::string unreal_notes(const BatchBenchFlags& flags);
// What the columns mean, and what was pretended.
std::string figures_notes(const BatchBenchFlags& flags, bool on_device);

// With a list, several batch sizes.
void add_batch_options(Command& command, BatchBenchFlags& flags,
                       std::vector<int32_t>* batch_sizes = nullptr);
// Loads the model with room for the batch and sets flags.bench.draft_len.
std::unique_ptr<LoadedModel> load_for_batch(BatchBenchFlags& flags);

// The batch form of `bench latency`.
void bench_batch(BatchBenchFlags& flags, int runs);

}  // namespace foresail
