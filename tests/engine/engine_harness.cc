#include "engine/engine_harness.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/check.h"

namespace foresail {

std::string golden_path(const std::string& golden) {
  return std::string(FORESAIL_SOURCE_DIR) + "/tests/goldens/" + golden;
}

std::string model_path(const std::string& name) {
  return std::string(FORESAIL_SOURCE_DIR) + "/models/" + name;
}

EngineOptions tiny_options(const std::string& golden, SpeculativeAlgorithm algorithm,
                           int page_size) {
  EngineOptions options;
  options.model_path = golden_path(golden);
  options.dtype = "f32";
  options.threads = 1;
  options.attention_path = "absorbed";   // in plain_outputs too
  options.speculative.adaptive = false;  // counters are to be exact
  options.page_size = page_size;
  options.context_length = 256;
  options.max_running_requests = 5;
  options.slot_count = 5;
  options.max_total_tokens = 512;
  options.speculative.algorithm = algorithm;
  options.speculative.steps = 7;
  if (algorithm == SpeculativeAlgorithm::kEagle3)
    options.speculative.draft_model_path = golden_path(golden) + "/draft";
  if (algorithm == SpeculativeAlgorithm::kStandalone)
    options.speculative.draft_model_path = golden_path(golden);
  return options;
}

std::vector<Request> random_requests(uint64_t seed, int count, int vocab_size) {
  std::mt19937_64 random(seed);
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  std::vector<int32_t> shared;
  for (int i = 0; i < 70; ++i) shared.push_back(3 + below(vocab_size - 3));
  std::vector<Request> requests(count);
  for (int i = 0; i < count; ++i) {
    Request& request = requests[i];
    if (i % 3 == 1) request.input_ids = shared;
    const int length = 1 + below(40);
    const int period = 3 + below(8);
    for (int j = 0; j < length; ++j) {
      const bool repeat = j >= period && below(3) > 0;
      request.input_ids.push_back(repeat ? request.input_ids[request.input_ids.size() - period]
                                         : 3 + below(vocab_size - 3));
    }
    request.max_tokens = 2 + below(14);
    request.ignore_eos = below(4) > 0;
    request.priority = below(3);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    if (i % 4 == 3) request.sampling.top_p = 0.8f;
    if (i % 5 == 4) request.sampling.frequency_penalty = 0.5f;
    if (i % 7 == 6) request.min_tokens = 2;
    request.sampling.seed = random();
  }
  return requests;
}

void add_terms(std::vector<Request>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& sampling = requests[i].sampling;
    if (i % 4 == 1) sampling.frequency_penalty = 0.6f;
    if (i % 5 == 2) sampling.presence_penalty = -0.9f;
    if (i % 3 == 0) sampling.repetition_penalty = i % 2 == 0 ? 1.3f : 0.8f;
    if (i % 6 == 4) sampling.logit_bias = {{17, 2.5f}, {40, -100.0f}, {299, 1.0f}};
    if (i % 4 == 2) requests[i].top_logprobs = static_cast<int>(5 * i);
    if (i % 3 == 2 && requests[i].stop_token_ids.empty())
      requests[i].min_tokens = std::min<int64_t>(requests[i].max_tokens, 9);
  }
}

void expect_same_logprobs(const Output& output, const Output& expected) {
  ASSERT_EQ(output.logprobs.size(), expected.logprobs.size());
  for (size_t i = 0; i < output.logprobs.size(); ++i) {
    EXPECT_EQ(output.logprobs[i].chosen, expected.logprobs[i].chosen) << "token " << i;
    EXPECT_EQ(output.logprobs[i].top, expected.logprobs[i].top) << "token " << i;
  }
}

void expect_aborts_disturb_nobody(EngineLoop& loop, const std::vector<Request>& requests,
                                  const std::vector<Output>& expected, uint64_t seed,
                                  int steps_between) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  std::vector<Output> outputs(requests.size());
  std::vector<RequestId> ids;
  std::vector<bool> aborted(requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    ids.push_back(loop.submit(*loop.prepare(requests[i]), collect_into(outputs[i])));
  do {
    if (random() % static_cast<uint64_t>(steps_between) != 0) continue;
    const size_t victim = random() % requests.size();
    const bool there = outputs[victim].endings == 0;
    EXPECT_EQ(loop.abort(ids[victim]), there);
    if (there) aborted[victim] = true;
    EXPECT_FALSE(loop.abort(ids[victim]));
  } while (loop.step());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(outputs[i].endings, 1);
    EXPECT_EQ(outputs[i].stats.finish == FinishReason::kAborted, aborted[i]);
    const size_t count = aborted[i] ? outputs[i].ids.size() : expected[i].ids.size();
    EXPECT_EQ(outputs[i].ids,
              std::vector<int32_t>(expected[i].ids.begin(), expected[i].ids.begin() + count))
        << "request " << i;
  }
}

EventSink collect_into(Output& output) {
  return [&output](const Event& event, const GenerationStats& stats) {
    if (event.token >= 0) output.ids.push_back(event.token);
    if (event.logprobs) output.logprobs.push_back(*event.logprobs);
    output.text += event.text;
    output.endings += event.finish.has_value();
    output.stats = stats;
  };
}

std::vector<Output> plain_outputs(LoadedModel& model, const std::vector<Request>& requests) {
  FORESAIL_CHECK(model.drafter() == nullptr, "a drafter is loaded");
  TextGenerator generator(model, nullptr);
  std::vector<Output> outputs(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    outputs[i].stats =
        generator.generate(requests[i].input_ids, requests[i], [&](const Event& event) {
          outputs[i].ids.push_back(event.token);
          if (event.logprobs) outputs[i].logprobs.push_back(*event.logprobs);
        });
  }
  return outputs;
}

std::vector<Output> serve(EngineLoop& loop, const std::vector<Request>& requests) {
  std::vector<Output> outputs(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Result<PreparedRequest> prepared = loop.prepare(requests[i]);
    FORESAIL_CHECK(prepared.has_value(), "refused: {}", prepared.error().message);
    loop.submit(std::move(*prepared), collect_into(outputs[i]));
  }
  while (loop.step()) {
  }
  return outputs;
}

ScriptedDrafter::ScriptedDrafter(const std::vector<Request>& requests,
                                 const std::vector<Output>& outputs, int32_t offset)
    : offset_(offset) {
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t>& sequence = sequences_.emplace_back(requests[i].input_ids);
    sequence.insert(sequence.end(), outputs[i].ids.begin(), outputs[i].ids.end());
  }
}

void ScriptedDrafter::draft(std::span<const DraftRequest> requests,
                            std::span<std::vector<int32_t>> drafts) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::span<const int32_t> known = requests[i].tokens;
    drafts[i].clear();
    for (const std::vector<int32_t>& sequence : sequences_) {
      if (sequence.size() < known.size() ||
          !std::equal(known.begin(), known.end(), sequence.begin()))
        continue;
      for (size_t at = known.size(); at < sequence.size(); ++at) {
        if (static_cast<int>(drafts[i].size()) == requests[i].steps) break;
        drafts[i].push_back((sequence[at] + offset_) % 320);
      }
      break;
    }
  }
}

}  // namespace foresail
