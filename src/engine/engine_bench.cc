#include "engine/engine_bench.h"

#include <chrono>

#include "base/check.h"
#include "base/random.h"
#include "engine/engine_loop.h"
#include "engine/load_tokenizer.h"

namespace foresail {
namespace {

Request made_up_request(const ModelConfig& config, const BatchBenchOptions& options,
                        int32_t index) {
  Request request;
  for (int64_t i = 0; i < options.context_len; ++i)
    request.input_ids.push_back(static_cast<int32_t>(
        random_bits(options.seed + index, i, RandomPurpose::kShuffle) % config.vocab_size));
  request.max_tokens = options.output_len;
  request.ignore_eos = true;
  request.sampling.temperature = options.temperature;
  request.sampling.seed = options.seed + index;
  return request;
}

}  // namespace

EngineBenchResult bench_engine(LoadedModel& model, const BatchBenchOptions& options) {
  EngineOptions engine;
  static_cast<ModelOptions&>(engine) = model.options();
  engine.max_running_requests = options.batch_size;
  engine.disable_radix_cache = true;
  engine.launch_ahead = options.launch_ahead;
  engine.speculative.adaptive = options.adaptive;
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(engine.model_path);
  EngineLoop loop(model, tokenizer.get(), engine);
  int32_t without_token = options.batch_size, ended = 0;
  for (int32_t index = 0; index < options.batch_size; ++index) {
    Result<PreparedRequest> prepared =
        loop.prepare(made_up_request(model.config(), options, index));
    FORESAIL_CHECK(prepared.has_value(), "refused: {}", prepared.error().message);
    loop.submit(std::move(*prepared),
                [&, first = true](const Event& event, const GenerationStats&) mutable {
                  without_token -= std::exchange(first, false);
                  ended += event.finish.has_value();
                });
  }
  while (without_token > 0 && loop.step()) {
  }
  model.kernels().time_work(true);
  const DeviceCounts device_before = model.kernels().counts();
  const EngineStats before = loop.stats();
  const auto start = std::chrono::steady_clock::now();
  while (ended == 0 && loop.step()) {
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  const EngineStats after = loop.stats();
  EngineBenchResult result{.steps = after.steps - before.steps,
                           .launched_ahead = after.launched_ahead - before.launched_ahead,
                           .wall_s = wall.count(),
                           .host_s = 0.0,
                           .device = model.kernels().counts() - device_before};
  model.kernels().time_work(false);
  result.host_s = result.wall_s - 1e-9 * static_cast<double>(result.device.wait_ns);
  while (loop.step()) {
  }
  return result;
}

}  // namespace foresail
