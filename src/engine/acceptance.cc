#include "engine/acceptance.h"

#include <array>
#include <set>

#include "engine/text_generator.h"

namespace foresail {
namespace {

int64_t repeated_4grams(const std::vector<int32_t>& tokens) {
  std::set<std::array<int32_t, 4>> seen;
  int64_t repeated = 0;
  for (size_t i = 3; i < tokens.size(); ++i)
    if (!seen.insert({tokens[i - 3], tokens[i - 2], tokens[i - 1], tokens[i]}).second) ++repeated;
  return repeated;
}

}  // namespace

double Acceptance::accept_length() const {
  return foresail::accept_length(accepted, draft_passes);
}

double Acceptance::rate_at(int position) const {
  return drafted_at[position] == 0 ? 0.0
                                   : static_cast<double>(accepted_at[position]) /
                                         static_cast<double>(drafted_at[position]);
}

Acceptance measure_acceptance(LoadedModel& model, const Tokenizer& tokenizer,
                              const std::vector<std::string>& prompts, const Request& request,
                              int steps) {
  Acceptance result;
  result.steps = steps;
  result.drafted_at.assign(steps, 0);
  result.accepted_at.assign(steps, 0);
  TextGenerator generator(model, &tokenizer);
  int64_t repeated = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request one = request;
    one.sampling.seed += i;
    one.speculative_steps = steps;
    std::vector<int32_t> tokens;
    const GenerationStats stats = generator.generate(
        tokenizer.encode(prompts[i], {.add_bos = true}), one, [&](const Event& event) {
          if (event.token >= 0) tokens.push_back(event.token);
        });
    ++result.prompts;
    result.output_tokens += stats.output_tokens;
    result.verify_passes += stats.verify_passes;
    result.draft_passes += stats.draft_passes();
    result.accepted += stats.accepted;
    for (int position = 0; position < steps; ++position) {
      result.drafted_at[position] += stats.drafted_at[position];
      result.accepted_at[position] += stats.accepted_at[position];
    }
    repeated += repeated_4grams(tokens);
  }
  result.repeated_4gram_share =
      result.output_tokens == 0
          ? 0.0
          : static_cast<double>(repeated) / static_cast<double>(result.output_tokens);
  return result;
}

}  // namespace foresail
