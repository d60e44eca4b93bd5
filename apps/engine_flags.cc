#include "apps/engine_flags.h"

#include "apps/flag_checks.h"
#include "apps/flag_groups.h"

namespace foresail {

void add_engine_flags(Command& command, EngineFlags& flags) {
  add_model_flags(command, flags.model, true);
  EngineOptions& engine = flags.engine;
  FlagGroup scheduling(command, kSchedulingGroup), device(command, kDeviceGroup);
  scheduling
      .add_option(
          "--max-running-requests,--max-num-seqs", engine.max_running_requests,
          "requests that run at once; on a GPU each reserves 10 bytes for every token of the "
          "vocabulary")
      ->capture_default_str()
      ->check(number_in(1, kMostRunningRequests));
  device
      .add_option("--max-total-tokens", flags.model.options.max_total_tokens,
                  "tokens in the cache; 0: a full context per running request, at most 8")
      ->capture_default_str()
      ->check(number_in(int64_t{0}, INT64_MAX));
  device
      .add_option("--mem-fraction-static,--gpu-memory-utilization",
                  flags.model.options.mem_fraction_static,
                  "share of the available memory for weights and cache together, instead of "
                  "--max-total-tokens; 0: off")
      ->capture_default_str()
      ->check(number_in(0.0, 1.0))
      ->excludes("--max-total-tokens");
  scheduling
      .add_option("--chunked-prefill-size", engine.chunked_prefill_size,
                  "tokens of one prefill pass")
      ->capture_default_str()
      ->check(number_in(int64_t{1}, INT64_MAX));
  scheduling.add_flag("--disable-radix-cache", engine.disable_radix_cache,
                      "do not share the KV of common prefixes");
  scheduling.add_flag_callback(
      "--disable-overlap-schedule", [&engine] { engine.launch_ahead = false; },
      "cuda: wait for the results of a step before the next one is launched");
  scheduling.add_option("--seed-schedule", engine.seed_schedule,
                        "shuffle every scheduling choice that must not matter; 0: off");
}

std::unique_ptr<LoadedModel> load_engine_model(EngineFlags& flags) {
  flags.model.options.slot_count = flags.engine.max_running_requests;
  auto model = load_model(flags.model);
  static_cast<ModelOptions&>(flags.engine) = model->options();
  return model;
}

}  // namespace foresail
