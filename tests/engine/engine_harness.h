// Requests through the serving loop, and the same through the single-request generator: two paths
// whose outputs must be equal bit for bit.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/text_generator.h"

namespace foresail {

struct Output {
  std::vector<int32_t> ids;
  std::string text;
  std::vector<TokenLogprobs> logprobs;
  GenerationStats stats;
  int endings = 0;  // events with a finish reason
};

// A tiny golden checkpoint in f32 on one thread; the cache is small enough to run out.
EngineOptions tiny_options(const std::string& golden, SpeculativeAlgorithm algorithm,
                           int page_size = 16);
std::string golden_path(const std::string& golden);
std::string model_path(const std::string& name);

// Prompts of 1..40 tokens, some behind a shared prefix, greedy and seeded, with repetitions.
std::vector<Request> random_requests(uint64_t seed, int count, int vocab_size = 320);

// Gives them what changes logits or asks for log probabilities, by turns and together.
void add_terms(std::vector<Request>& requests);
void expect_same_logprobs(const Output& output, const Output& expected);

// One at a time, without a drafter.
std::vector<Output> plain_outputs(LoadedModel& model, const std::vector<Request>& requests);

// All at once; the loop is left idle.
std::vector<Output> serve(EngineLoop& loop, const std::vector<Request>& requests);
// As serve(), with an abort of a request at random about every so many steps: it ends at once, with
// the beginning of what is expected of it, and the others' outputs are as expected.
void expect_aborts_disturb_nobody(EngineLoop& loop, const std::vector<Request>& requests,
                                  const std::vector<Output>& expected, uint64_t seed,
                                  int steps_between);
// The sink that collects into `output`, which outlives the request.
EventSink collect_into(Output& output);

// Proposes what it has been told the output is, `offset` added to every token.
class ScriptedDrafter : public Drafter {
 public:
  ScriptedDrafter(const std::vector<Request>& requests, const std::vector<Output>& outputs,
                  int32_t offset);
  std::string_view name() const override { return "scripted"; }
  void draft(std::span<const DraftRequest> requests,
             std::span<std::vector<int32_t>> drafts) override;

 private:
  std::vector<std::vector<int32_t>> sequences_;
  int32_t offset_;
};

}  // namespace foresail
